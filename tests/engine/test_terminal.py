"""Texts of others stay text on a terminal."""

import io
import logging
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from sprout.engine.progress import progress
from sprout.engine.terminal import PlainConsole, guard_streams, one_line, say, visible

ATTACK = "\x1b[2J\x1b]0;owned\x07\x9b31m[red]x[/] \u202egpj.exe :smile: \r\x08"
SHOWN = r"\x1b[2J\x1b]0;owned\x07\x9b31m[red]x[/] \u202egpj.exe :smile: \r\x08"


def controls(text):
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cs")} - {"\n", "\t"}


@given(st.text(st.characters(exclude_categories=()) | st.characters(categories=("Cc", "Cs", "Cf"))))
def test_no_control_character_is_left_and_other_text_is_as_it_was(text):
    shown = visible(text)
    assert not controls(shown) and shown.isascii() >= text.isascii()
    shown.encode()  # nor anything that cannot be printed
    assert visible(shown) == shown


@pytest.mark.parametrize("text", ["", "a\tb\nc", "Grüße, 日本語, 👩‍🔬, x\\x1b", "−0.5 %"])
def test_ordinary_text_is_not_changed(text):
    assert visible(text) == text


def test_say_and_one_line(capsys):
    say(ATTACK)
    assert capsys.readouterr().out == f"{SHOWN}\n"
    assert one_line("a\n\x1b\n  b") == r"a \x1b b"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_console_has_no_markup_and_shows_controls(terminal):
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=terminal, color_system=None, width=200)
    table = Table(ATTACK, title="[/] title")
    table.add_row(f"cell {ATTACK}")
    console.print(ATTACK)
    console.print(table)
    assert out.getvalue().count(SHOWN) == 3 and "[/] title" in out.getvalue()
    assert not controls(out.getvalue())


def test_a_progress_description_is_text():
    for terminal in (True, False):
        out = io.StringIO()
        console = PlainConsole(file=out, force_terminal=terminal, color_system=None, width=120)
        with progress("[/] \x1b]0;owned\x07", 2, console=console, seconds_between_lines=0) as advance:
            advance()
        assert r"[/] \x1b]0;owned\x07" in out.getvalue() and "\x1b]" not in out.getvalue()


def test_log_records_and_tracebacks_are_shown(capsys, monkeypatch):
    monkeypatch.setattr("sys.excepthook", None)
    monkeypatch.setattr(logging.lastResort, "formatter", None)
    guard_streams()
    import sys

    sys.excepthook(KeyError, KeyError(f"{ATTACK}"), None)
    try:
        raise RuntimeError(ATTACK)
    except RuntimeError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    record = logging.makeLogRecord({"msg": "environment: %s", "args": (f"{ATTACK}\nforged line",)})
    logging.lastResort.handle(record)
    err = capsys.readouterr().err
    assert not controls(err) and "\nforged" not in err and "environment: " in err and "RuntimeError" in err
