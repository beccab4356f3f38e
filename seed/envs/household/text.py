"""Every sentence the household world says: lower case, words and punctuation separated by single spaces."""

from collections.abc import Iterable

NOTHING_HAPPENS = "nothing happens ."
SYSTEM_PROMPT = "you act in a room . do the task with one command each turn ."
ANALYZER_INSTRUCTIONS = {
    "success": "read the episode . the player did the task . write a short skill : what to do first .",
    "failure": "read the episode . the player did not do the task . write a short skill : how to do it .",
}


def task_text(family: str, object_kind: str, target_kind: str) -> str:
    """The task as the player reads it."""
    if family == "look-under-lamp":
        return f"look at {object_kind} under lamp ."
    if family == "pick-two":
        return f"put two {object_kind} in {target_kind} ."
    adjective = {"clean": "clean ", "heat": "hot ", "cool": "cool "}.get(family, "")
    return f"put a {adjective}{object_kind} in {target_kind} ."


def listing(names: Iterable[str]) -> str:
    """`"you see mug 1 , pen 1 ."`, or that nothing is there."""
    return f"you see {' , '.join(names) or 'nothing'} ."


def arrival(place: str, contents: list[str] | None) -> str:
    """What the player sees at `place`; `contents` is None while it is closed."""
    return f"you are at {place} . {'it is closed .' if contents is None else listing(contents)}"


def opening(place: str, contents: list[str]) -> str:
    """What opening `place` shows."""
    return f"{place} is open . {listing(contents)}"


def carrying(name: str | None) -> str:
    """The answer to `inventory`."""
    return f"you carry {name or 'nothing'} ."
