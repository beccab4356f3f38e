"""JSON over HTTP with time-outs and retries, in one call."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from typing import Any, TypeVar

T = TypeVar("T")
RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})
LONGEST_WAIT_S = 30.0
LARGEST_ANSWER = 256 * 2**20


def post_json(
    url: str,
    body: Any,
    *,
    name: str,
    timeout_s: float,
    retries: int,
    read: Callable[[Any], T],
    first_wait_s: float = 1.0,
) -> T:
    """POST `body` as JSON; what `read` makes of the answer's JSON value.

    timeout_s   for connecting, for silence in between, and for the whole body of the answer
    retries     further attempts after an outage, a status of overload, or an answer that is not JSON or that
                `read` refuses with ValueError, TypeError or LookupError; waits double from `first_wait_s`

    Raises ConnectionError, one line with `name` and the address, when no attempt brought an answer.
    """
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    wait = first_wait_s
    for attempt in range(retries + 1):
        try:
            return read(_attempt(request, timeout_s))
        except urllib.error.HTTPError as error:
            with error:
                problem = f"{error.code} {error.reason}: {_beginning(error)}"
            if error.code not in RETRIED:
                break
        except (OSError, HTTPException, ValueError, TypeError, LookupError) as error:
            problem = f"{type(error).__name__}: {error}"
        if attempt < retries:
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_S)
    raise ConnectionError(f"{name} {url}: {' '.join(problem.split())}")


def _attempt(request: urllib.request.Request, timeout_s: float) -> Any:
    deadline = time.monotonic() + timeout_s
    content = bytearray()
    with urllib.request.urlopen(request, timeout=timeout_s) as response:
        while chunk := _chunk(response, deadline):
            content += chunk
            if len(content) > LARGEST_ANSWER:
                raise OSError(f"the answer is longer than {LARGEST_ANSWER >> 20} MiB")
    return json.loads(content)


def _chunk(response: HTTPResponse, deadline: float) -> bytes:
    """What has arrived; a server that dribbles must not hold us for ever."""
    if time.monotonic() > deadline:
        raise TimeoutError("the answer did not end in time")
    return response.read1(65536)


def _beginning(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(200).decode(errors="replace")
    except (OSError, HTTPException):
        return ""
