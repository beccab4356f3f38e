"""State of one household room, its generation from (split, seed), and the execution of text commands."""

from dataclasses import dataclass
from hashlib import blake2b
from random import Random

from sprout.seed.envs.household import text
from sprout.seed.envs.household.kinds import (
    FAMILIES,
    LAMP,
    LAMP_KIND,
    LAMP_PLACES,
    MOST_OF_A_KIND,
    OBJECT_KINDS,
    PROCESSES,
    RECEPTACLE_KINDS,
    is_closed_kind,
    kind_of,
    pairs,
)

HABIT_PROBABILITY = 0.65
RECEPTACLES, OBJECTS = (8, 10), (6, 8)


@dataclass(frozen=True)
class Task:
    """What to do: any object of `object_kind`, in any receptacle of `target_kind` or under the lamp."""

    family: str
    object_kind: str
    target_kind: str

    @property
    def text(self) -> str:
        return text.task_text(self.family, self.object_kind, self.target_kind)

    @property
    def count(self) -> int:
        return 2 if self.family == "pick-two" else 1

    @property
    def process(self) -> str | None:
        """`clean`, `heat` or `cool` where the family needs it."""
        return self.family if self.family in PROCESSES else None


@dataclass(frozen=True)
class Outcome:
    """What a command led to."""

    observation: str
    valid: bool


class World:
    """One room. `origin` keeps every object's first place; the rest is the current state."""

    def __init__(self, task: Task, receptacles: list[str], origin: dict[str, str]) -> None:
        self.task = task
        self.receptacles = receptacles
        self.origin = dict(origin)
        self.contents: dict[str, list[str]] = {place: [] for place in receptacles}
        for name, place in origin.items():
            self.contents[place].append(name)
        self.closed = {place for place in receptacles if is_closed_kind(kind_of(place))}
        self.position: str | None = None
        self.carried: str | None = None
        self.processed: dict[str, set[str]] = {}
        self.looked_at: str | None = None

    @property
    def first_observation(self) -> str:
        return text.listing(self.receptacles)

    @property
    def success(self) -> bool:
        """Whether the task is fulfilled now."""
        task = self.task
        if task.family == "look-under-lamp":
            return self.looked_at is not None and kind_of(self.looked_at) == task.object_kind
        placed = [
            name
            for place in self.receptacles
            if kind_of(place) == task.target_kind
            for name in self.contents[place]
            if kind_of(name) == task.object_kind
            and (task.process is None or task.process in self.processed.get(name, ()))
        ]
        return len(placed) >= task.count

    def execute(self, command: str) -> Outcome:
        """Carry out one text command; anything impossible or unknown changes nothing and is not valid."""
        observation = self._execute(command.lower().split())
        return Outcome(text.NOTHING_HAPPENS if observation is None else observation, observation is not None)

    def _execute(self, words: list[str]) -> str | None:
        match words:
            case ["go", "to", kind, number]:
                return self._go(f"{kind} {number}")
            case ["open", kind, number]:
                return self._open(f"{kind} {number}")
            case ["take", kind, number, "from", place_kind, place_number]:
                return self._take(f"{kind} {number}", f"{place_kind} {place_number}")
            case ["put", kind, number, "in", place_kind, place_number]:
                return self._put(f"{kind} {number}", f"{place_kind} {place_number}")
            case [("clean" | "heat" | "cool") as verb, kind, number, "with", place_kind, place_number]:
                return self._process(verb, f"{kind} {number}", f"{place_kind} {place_number}")
            case ["use", "lamp", "1"]:
                return self._use_lamp()
            case ["look"]:
                return self._view() if self.position else self.first_observation
            case ["inventory"]:
                return text.carrying(self.carried)
        return None

    def _is_accessible(self, place: str) -> bool:
        return place == self.position and place not in self.closed

    def _view(self) -> str:
        assert self.position is not None
        closed = self.position in self.closed
        return text.arrival(self.position, None if closed else self.contents[self.position])

    def _go(self, place: str) -> str | None:
        if place not in self.contents or place == self.position:
            return None
        self.position = place
        return self._view()

    def _open(self, place: str) -> str | None:
        if place != self.position or place not in self.closed:
            return None
        self.closed.remove(place)
        return text.opening(place, self.contents[place])

    def _take(self, name: str, place: str) -> str | None:
        if self.carried or name == LAMP or not self._is_accessible(place) or name not in self.contents[place]:
            return None
        self.contents[place].remove(name)
        self.carried = name
        return f"you take {name} from {place} ."

    def _put(self, name: str, place: str) -> str | None:
        if name != self.carried or not self._is_accessible(place):
            return None
        self.contents[place].append(name)
        self.carried = None
        return f"you put {name} in {place} ."

    def _process(self, verb: str, name: str, place: str) -> str | None:
        if name != self.carried or place != self.position or PROCESSES[verb][0] != place:
            return None
        done = self.processed.setdefault(name, set())
        done -= {"heat": {"cool"}, "cool": {"heat"}}.get(verb, set())
        done.add(verb)
        return f"you {verb} {name} with {place} ."

    def _use_lamp(self) -> str | None:
        if self.position is None or LAMP not in self.contents[self.position]:
            return None
        if self.carried is None:
            return f"you use {LAMP} ."
        self.looked_at = self.carried
        return f"you look at {self.carried} under {LAMP} ."


def generate_world(
    split: str,
    seed: int,
    receptacles: tuple[int, int] = RECEPTACLES,
    objects: tuple[int, int] = OBJECTS,
) -> World:
    """The room of (split, seed). `receptacles` and `objects` are the smallest and largest numbers of them."""
    digest = blake2b(f"household/{split}/{seed}".encode(), digest_size=8).digest()
    rng = Random(int.from_bytes(digest, "big"))
    family = rng.choice(FAMILIES)
    task = Task(family, *rng.choice(pairs(split, family)))
    room = _furnish(rng, task, rng.randint(*receptacles))
    return World(task, room, _scatter(rng, task, room, rng.randint(*objects)))


def _furnish(rng: Random, task: Task, count: int) -> list[str]:
    """Receptacles of a room: what the task needs, and others at random up to `count`."""
    kinds = {"fridge": 1, "microwave": 1, "sink": 1, "cabinet": 1, "drawer": 1}
    lamp_place = rng.choice(LAMP_PLACES)
    for needed in (OBJECT_KINDS[task.object_kind].habit, task.target_kind, lamp_place):
        if needed != LAMP_KIND:
            kinds[needed] = 1
    while sum(kinds.values()) < count:
        kind = rng.choice(RECEPTACLE_KINDS)
        if kinds.get(kind, 0) < MOST_OF_A_KIND.get(kind, 1):
            kinds[kind] = kinds.get(kind, 0) + 1
    return [f"{kind} {i + 1}" for kind in RECEPTACLE_KINDS for i in range(kinds.get(kind, 0))]


def _scatter(rng: Random, task: Task, room: list[str], count: int) -> dict[str, str]:
    """Objects and their first places; none of the wanted kind starts where the task wants it."""
    wanted = [task.object_kind] * task.count
    others = [kind for kind in OBJECT_KINDS if kind != task.object_kind]
    spare = [task.object_kind] if task.count == 1 and rng.random() < 0.15 else []
    kinds = wanted + spare + [rng.choice(others) for _ in range(count - len(wanted) - len(spare))]
    rng.shuffle(kinds)
    numbers: dict[str, int] = {}
    origin = {}
    for kind in kinds:
        numbers[kind] = numbers.get(kind, 0) + 1
        avoid = task.target_kind if kind == task.object_kind else ""
        origin[f"{kind} {numbers[kind]}"] = _place(rng, kind, [r for r in room if kind_of(r) != avoid])
    origin[LAMP] = rng.choice([place for place in room if kind_of(place) in LAMP_PLACES])
    return origin


def _place(rng: Random, kind: str, room: list[str]) -> str:
    """The habitual receptacle kind with HABIT_PROBABILITY if the room has it, else any other receptacle."""
    habitual = [place for place in room if kind_of(place) == OBJECT_KINDS[kind].habit]
    others = [place for place in room if place not in habitual]
    return rng.choice(habitual if habitual and rng.random() < HABIT_PROBABILITY else others)
