"""From a policy's response to a search or an answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["search", "answer"]
STOP_STRINGS = ("</search>", "</answer>")
_TAG = re.compile(r"<(/?)(search|answer)>")


@dataclass(frozen=True)
class Action:
    """What a response asks for; `kind` is None and `text` empty where it is no valid action."""

    kind: Kind | None
    text: str


INVALID = Action(None, "")


def parse_response(response: str) -> Action:
    """The one `<search>query</search>` or `<answer>answer</answer>` of a response.

    Neither of them, both, a repeated or unpaired tag, or nothing inside: no valid action. What stands around
    the action does not matter.
    """
    tags = list(_TAG.finditer(response))
    if [tag[1] for tag in tags] != ["", "/"] or tags[0][2] != tags[1][2]:
        return INVALID
    text = response[tags[0].end() : tags[1].start()].strip()
    kind: Kind = "search" if tags[0][2] == "search" else "answer"
    return Action(kind, text) if text else INVALID


def format_response(kind: Kind, text: str, thought: str) -> str:
    """A response that thinks and then searches or answers."""
    return f"<think>{thought}</think>\n<{kind}>{text}</{kind}>"
