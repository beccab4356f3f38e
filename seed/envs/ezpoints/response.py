"""From a policy's response to an action: one JSON object with the key `action`."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from sprout.seed.envs.response import Parsed, parse_response

Format = Literal["json", "plain"]
FORMATS: tuple[Format, ...] = ("json", "plain")
_REASONING = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_FENCE = re.compile(r"\s*```(?:json)?\s*(\{.*\})\s*```\s*", re.DOTALL)


def parse_action(response: str, format: Format = "json") -> Parsed:
    """The action of a response.

    json    one JSON object with a string or a whole number under `action`, and nothing else but reasoning in
            <think> before it and a code fence around it
    plain   the response is the action

    Of several objects the last one with an action counts, but the response is not well formed.
    """
    if format == "plain":
        return parse_response(response, "plain")
    answer = _REASONING.sub("", response, count=1) if response.lstrip().startswith("<think>") else response
    fenced = _FENCE.fullmatch(answer)
    try:
        return _parse_json((fenced[1] if fenced else answer).strip())
    except RecursionError:  # nested too deeply to be meant
        return Parsed("", well_formed=False)


def format_action(action: str, thought: str, format: Format = "json") -> str:
    """A well-formed response with this action."""
    if format == "plain":
        return action
    return json.dumps({"thoughts": thought, "action": action}, ensure_ascii=False)


def _parse_json(answer: str) -> Parsed:
    found, end = _decode(answer, 0)
    whole = _action(found) if end == len(answer) else None
    if whole is not None:
        return Parsed(whole, bool(whole))
    return Parsed(_last_action(answer), well_formed=False)


def _last_action(text: str) -> str:
    found, place = "", text.find("{")
    while place >= 0:
        decoded, end = _decode(text, place)
        found = _action(decoded) or found
        place = text.find("{", max(end, place + 1))
    return found


def _decode(text: str, start: int) -> tuple[Any, int]:
    """(what stands at `start`, where it ends); (None, start) if that is no JSON object that can be read."""
    try:
        found, end = json.JSONDecoder(strict=False).raw_decode(text, start)
    except ValueError:  # not JSON, or an integer of thousands of digits
        return None, start
    return (found, end) if isinstance(found, dict) else (None, start)


def _action(found: Any) -> str | None:
    action = found.get("action") if isinstance(found, dict) else None
    if isinstance(action, bool) or not isinstance(action, str | int):
        return None
    return " ".join(str(action).lower().split())
