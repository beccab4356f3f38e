"""Answers of a server, kept on disk: a request that was answered once is never paid for again.

One JSON line per answer, keyed by everything that was asked. A line is appended in one write, so several
threads and processes may share the file, and one torn by a crash is dropped when it is read.
"""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True)
class Answer:
    """A completion: its text, why it ended, and its token counts as the server reports them."""

    text: str
    finish_reason: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Answers:
    """The answers in `file`; None keeps them in memory alone."""

    def __init__(self, file: Path | None) -> None:
        self._file, self._lock = file, threading.Lock()
        self._known = _read(file) if file is not None and file.is_file() else {}

    def get(self, request: Any) -> Answer | None:
        """The answer to an equal request (JSON values), if there is one."""
        return self._known.get(_key(request))

    def add(self, request: Any, answer: Answer) -> None:
        """Keep an answer. Raises OSError when it cannot be written."""
        key = _key(request)
        with self._lock:
            self._known[key] = answer
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                _append(self._file, orjson.dumps({"key": key, **asdict(answer)}) + b"\n")


def _key(request: Any) -> str:
    return hashlib.sha256(orjson.dumps(request, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _append(file: Path, line: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _read(file: Path) -> dict[str, Answer]:
    content = file.read_bytes()
    if content and not content.endswith(b"\n"):
        _append(file, b"\n")  # so that the next answer does not join the torn one
    found = {}
    for line in content.splitlines():
        try:
            record = orjson.loads(line)
            key = record.pop("key")
            found[key] = Answer(**record)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
            continue  # torn by a crash: asked again
    return found
