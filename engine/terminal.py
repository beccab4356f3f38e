"""Texts of others on a terminal.

Trajectories, model folders, servers and environments bring texts that nobody has checked. On a terminal they
stay text: rich's markup means nothing in them, and control characters, which could move the cursor, hide
lines or set the window's title, are written out.
"""

import logging
import re
import sys
import traceback
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.text import Text

# C0 without tab and newline, DEL, C1 (some terminals take U+009B for ESC [), and what reorders text (Trojan
# Source, arXiv 2111.00169).
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """`text` with control characters written out, as in \\x1b; newlines and tabs stay."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """`visible` text without line breaks or runs of blanks."""
    return visible(" ".join(text.split()))


def say(text: str) -> None:
    """Print a text that may hold anything on stdout."""
    print(visible(text), flush=True)


class PlainConsole(Console):
    """A rich console that takes every string, also in tables, for plain text."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Where rich makes text of a string."""
        return super().render_str(visible(text), **settings)


def guard_streams() -> None:
    """What Python itself writes to stderr, unforeseen exceptions and log records, is made visible too."""
    sys.excepthook = _print_exception
    assert logging.lastResort is not None
    logging.lastResort.setFormatter(_VisibleFormatter("%(message)s"))


def _print_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    text = "".join(traceback.format_exception(kind, error, trace))
    print(visible(text), end="", file=sys.stderr, flush=True)


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record))
