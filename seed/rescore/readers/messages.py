"""OpenAI-style conversations: {"messages": [{"role", "content"}, ...]}.

Optional keys: id, group, family, success, reward (or score), skill. Tool results count as user messages; tool
calls are written into the assistant's text the way the Qwen and Hermes templates do. Several messages of the
other side in a row are one observation, joined by a blank line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sprout.seed.rescore.dialogue import Dialogue, Step
from sprout.seed.rescore.readers import Line
from sprout.seed.trajectory import Trajectory

SYSTEM = ("system", "developer")
SEEN = ("user", "tool", "function", "environment")


def recognises(record: Mapping[str, Any]) -> bool:
    """It has a list of messages."""
    return isinstance(record.get("messages"), list)


def read(record: Mapping[str, Any], line: Line) -> Trajectory:
    """The conversation as an episode: every assistant message is an action."""
    messages = record.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list of {role, content}")
    pairs = list(_pairs(messages))
    system = "\n\n".join(text for role, text in pairs if role == "system") or line.system
    steps, seen = [], []
    for role, text in pairs:
        if role == "user":
            seen.append(text)
        elif role == "assistant":
            if not seen:
                raise ValueError("an assistant message does not follow a user or tool message")
            steps.append(Step("\n\n".join(seen), text))
            seen = []
    if not steps:
        raise ValueError("no assistant message: nothing to score")
    return Dialogue(
        id=str(record.get("id", line.number)),
        env="messages",
        steps=steps,
        system=system,
        final_observation="\n\n".join(seen),
        **outcome(record),
    ).trajectory(line.chat, line.layout)


def outcome(record: Mapping[str, Any]) -> dict[str, Any]:
    """What records of any format may say about themselves: group, family, success, reward and skill."""
    success, reward = record.get("success"), record.get("reward", record.get("score"))
    if success is not None and not isinstance(success, bool):
        raise ValueError(f"success = {success!r}: should be true or false")
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, (int, float))):
        raise ValueError(f"reward = {reward!r}: should be a number")
    skill = record.get("skill") or ""
    if not isinstance(skill, str):
        raise ValueError(f"skill should be a text, not {type(skill).__name__}")
    return {
        "group": str(record.get("group", "")),
        "family": str(record.get("family", "all")),
        "success": success,
        "reward": None if reward is None else float(reward),
        "skill": skill,
    }


def _pairs(messages: list[Any]) -> Iterator[tuple[str, str]]:
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role in SYSTEM:
            yield "system", _text(message, number)
        elif role in SEEN:
            yield "user", _text(message, number)
        elif role == "assistant":
            yield "assistant", _said(message, number)
        else:
            raise ValueError(f"messages.{number}: role {role!r} is none of system, user, assistant, tool")


def _text(message: Mapping[str, Any], number: int) -> str:
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raise ValueError(f"messages.{number}: only text parts can be scored")
        if not all(isinstance(part.get("text"), str) for part in content):
            raise ValueError(f"messages.{number}: a text part has no text")
        content = "".join(part["text"] for part in content)
    if content is not None and not isinstance(content, str):
        raise ValueError(f"messages.{number}: content should be a text, not {type(content).__name__}")
    return content or ""


def _said(message: Mapping[str, Any], number: int) -> str:
    text = _text(message, number)
    calls = message.get("tool_calls") or []
    for call in calls if isinstance(calls, list) else [None]:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise ValueError(f"messages.{number}: tool_calls should be a list of objects with a function")
        arguments = function.get("arguments", {})
        known = json.loads(arguments) if isinstance(arguments, str) else arguments
        body = json.dumps({"name": function.get("name"), "arguments": known}, ensure_ascii=False)
        text += ("\n" if text else "") + f"<tool_call>\n{body}\n</tool_call>"
    return text
