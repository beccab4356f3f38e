"""Ctrl-C and SIGTERM: what ends a run from outside, so that it can go on later.

Ctrl-C ends at once; SIGTERM, which schedulers send before they take the machine away, too, except inside
`finishing()`: there the work in hand is finished and kept first.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


class Interrupted(BaseException):
    """The run was asked to end. Unlike KeyboardInterrupt it passes the command parser, which would end it
    with code 1. `exit_code` is the shell's for the signal."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def install() -> None:
    """Let SIGINT and SIGTERM raise Interrupted."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


@contextmanager
def finishing() -> Iterator[Callable[[], bool]]:
    """Inside the block SIGTERM only makes the value true; a second one interrupts after all."""
    asked = False

    def remember(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            _interrupt(number)
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread is sent signals
        return
    before = signal.signal(signal.SIGTERM, remember)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: Any = None) -> NoReturn:
    raise Interrupted(number)
