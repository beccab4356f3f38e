"""What a player or a reader can know of an episode from its text alone."""

import re
from collections.abc import Iterable

from sprout.seed.envs.household.kinds import LAMP, LAMP_KIND, is_closed_kind, kind_of
from sprout.seed.envs.household.world import Task

_TASK_PATTERNS = (
    (re.compile(r"look at (?P<object>\S+) under lamp \."), "look-under-lamp"),
    (re.compile(r"put two (?P<object>\S+) in (?P<target>\S+) \."), "pick-two"),
    (re.compile(r"put a clean (?P<object>\S+) in (?P<target>\S+) \."), "clean"),
    (re.compile(r"put a hot (?P<object>\S+) in (?P<target>\S+) \."), "heat"),
    (re.compile(r"put a cool (?P<object>\S+) in (?P<target>\S+) \."), "cool"),
    (re.compile(r"put a (?P<object>\S+) in (?P<target>\S+) \."), "pick-and-place"),
)
_TAKE = re.compile(r"you take (\S+ \d+) from (\S+ \d+) \.")
_PUT = re.compile(r"you put (\S+ \d+) in (\S+ \d+) \.")
_PROCESS = re.compile(r"you (clean|heat|cool) (\S+ \d+) with (\S+ \d+) \.")
_CARRY = re.compile(r"you carry (\S+ \d+) \.")
_ARRIVAL = re.compile(r"you are at (\S+ \d+) \.")
_OPENING = re.compile(r"(\S+ \d+) is open \.")
_LISTING = re.compile(r"you see (.+) \.")
_INSIDE = re.compile(r"(\S+ \d+) is in \S+ \d+ \.")


def parse_task(sentence: str) -> Task:
    """The task of its text; ValueError if it is no household task."""
    for pattern, family in _TASK_PATTERNS:
        if match := pattern.fullmatch(sentence):
            return Task(family, match["object"], match.groupdict().get("target", LAMP_KIND))
    raise ValueError(f"not a household task: {sentence!r}")


class Memory:
    """Knowledge gathered from observations; `contents[place]` exists once the inside was seen."""

    def __init__(self, first_observation: str) -> None:
        listed = _LISTING.fullmatch(first_observation)
        self.receptacles: list[str] = listed[1].split(" , ") if listed else []
        self.contents: dict[str, list[str]] = {}
        self.first_seen: dict[str, str] = {}
        self.position: str | None = None
        self.carried: str | None = None
        self.processed: dict[str, set[str]] = {}
        self.placed: dict[str, str] = {}

    @classmethod
    def of(cls, observations: Iterable[str]) -> "Memory":
        """The knowledge after reading `observations` in order."""
        first, *later = observations
        memory = cls(first)
        for observation in later:
            memory.observe(observation)
        return memory

    def observe(self, observation: str) -> None:
        """Take in what followed a command."""
        if match := _TAKE.match(observation):
            self._taken(match[1], match[2])
        elif match := _PUT.match(observation):
            self._put(match[1], match[2])
        elif match := _PROCESS.match(observation):
            self._processed(match[1], match[2])
        elif match := _CARRY.match(observation):
            self.carried = match[1]
        elif match := _ARRIVAL.match(observation):
            self.position = match[1]
            if "it is closed" not in observation:
                self._seen(match[1], _INSIDE.findall(observation))
        elif match := _OPENING.match(observation):
            self._seen(match[1], _INSIDE.findall(observation))

    def is_closed(self, place: str) -> bool:
        """Whether `place` has still to be opened."""
        return is_closed_kind(kind_of(place)) and place not in self.contents

    def seen(self) -> list[str]:
        """Receptacles whose inside is known, in the order of the room."""
        return [place for place in self.receptacles if place in self.contents]

    def unseen(self) -> list[str]:
        """Receptacles whose inside is unknown."""
        return [place for place in self.receptacles if place not in self.contents]

    def place_of(self, name: str) -> str | None:
        """Where `name` is known to lie now."""
        return next((place for place, names in self.contents.items() if name in names), None)

    def lamp_place(self) -> str | None:
        """Where the lamp is known to stand."""
        return self.place_of(LAMP)

    def here(self) -> list[str]:
        """Objects in view that can be taken."""
        return [name for name in self.contents.get(self.position or "", []) if name != LAMP]

    def _seen(self, place: str, names: list[str]) -> None:
        self.contents[place] = names
        for name in names:
            self.first_seen.setdefault(name, place)

    def _taken(self, name: str, place: str) -> None:
        self.carried = name
        self.first_seen.setdefault(name, place)
        if name in self.contents.get(place, []):
            self.contents[place].remove(name)
        self.placed.pop(name, None)

    def _put(self, name: str, place: str) -> None:
        self.carried = None
        self.contents.setdefault(place, []).append(name)
        self.placed[name] = place

    def _processed(self, verb: str, name: str) -> None:
        done = self.processed.setdefault(name, set())
        done -= {"heat": {"cool"}, "cool": {"heat"}}.get(verb, set())
        done.add(verb)

