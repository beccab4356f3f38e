"""Every sentence the household world says: lower case, words and punctuation separated by single spaces."""

from collections.abc import Iterable

NOTHING_HAPPENS = "nothing happens ."
SYSTEM_PROMPT = "you act in a room . do the task with one command each turn ."
COMMANDS = (
    "commands : go to PLACE , open PLACE , take THING from PLACE , put THING in PLACE , "
    "clean THING with sink 1 , heat THING with microwave 1 , cool THING with fridge 1 , "
    "use lamp 1 , look , inventory . "
    "say the command and nothing else ."
)
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


def listing(receptacles: Iterable[str]) -> str:
    """`"you see sofa 1 , sink 1 ."`: what the room is furnished with."""
    return f"you see {' , '.join(receptacles)} ."


def inside(place: str, contents: list[str]) -> str:
    """`"mug 1 is in sink 1 . pen 1 is in sink 1 ."`: the sentence that a skill says it in, too."""
    return " ".join(f"{name} is in {place} ." for name in contents) or f"{place} is empty ."


def arrival(place: str, contents: list[str] | None) -> str:
    """What the player sees at `place`; `contents` is None while it is closed."""
    return f"you are at {place} . {'it is closed .' if contents is None else inside(place, contents)}"


def opening(place: str, contents: list[str]) -> str:
    """What opening `place` shows."""
    return f"{place} is open . {inside(place, contents)}"


def carrying(name: str | None) -> str:
    """The answer to `inventory`."""
    return f"you carry {name or 'nothing'} ."
