"""From a policy's response to a command, for environments that play by short text commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Format = Literal["think", "action", "plain"]
FORMATS: tuple[Format, ...] = ("think", "action", "plain")
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"</?(?:action|think)>", re.IGNORECASE)
_COMMAND = r"<action>(?:(?!</?action>|</?think>).)+</action>"
_WELL_FORMED = {
    "think": re.compile(rf"\s*<think>(?:(?!</?think>|</?action>).)*</think>\s*{_COMMAND}\s*", re.DOTALL),
    "action": re.compile(rf"(?:(?!</?action>).)*{_COMMAND}\s*", re.DOTALL),
}


@dataclass(frozen=True)
class Parsed:
    """`command` is empty where the response holds none; `well_formed` says that the format was kept."""

    command: str
    well_formed: bool


@dataclass(frozen=True)
class Decision:
    """A command and the thought behind it."""

    command: str
    thought: str


def parse_response(response: str, format: Format = "think") -> Parsed:
    """The command of a response, in lower case with single blanks.

    think    `<think>reasoning</think><action>command</action>` and nothing else
    action   one `<action>command</action>`, at the end
    plain    the response is the command

    Of several actions the last one after the reasoning counts, but the response is not well formed.
    """
    if format == "plain":
        command = _normal(response)
        return Parsed(command, bool(command) and "\n" not in response.strip())
    _, _, answer = response.rpartition("</think>")
    found = _ACTION.findall(answer)
    command = _normal(found[-1]) if found else ""
    return Parsed(command, bool(command) and _WELL_FORMED[format].fullmatch(response) is not None)


def format_response(command: str, thought: str, format: Format = "think") -> str:
    """A well-formed response with this command."""
    if format == "plain":
        return command
    action = f"<action>{command}</action>"
    return action if format == "action" else f"<think>{thought}</think>{action}"


def how_to_answer(what: str, format: Format) -> str:
    """The system prompt's words for it; `what` is a command, a move, an action."""
    return {
        "think": "Think first, inside <think> and </think>; then give exactly one "
        f"{what} inside <action> and </action>.",
        "action": f"Give exactly one {what}, inside <action> and </action>.",
        "plain": f"Answer with the {what} alone.",
    }[format]


def _normal(text: str) -> str:
    return " ".join(_TAG.sub(" ", text).lower().split())
