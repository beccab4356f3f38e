"""Scripted players. They decide from what has been observed, never from the hidden state of the room."""

from dataclasses import dataclass
from random import Random

from sprout.seed.envs.household.kinds import (
    LAMP,
    LAMP_KIND,
    OBJECT_KINDS,
    PROCESSES,
    is_closed_kind,
    kind_of,
)
from sprout.seed.envs.household.memory import Memory
from sprout.seed.envs.household.skills import Skill, parse_skill
from sprout.seed.envs.household.world import Task


@dataclass(frozen=True)
class Noise:
    """Per-turn probabilities with which a player departs from its good command."""

    random_move: float = 0.0
    invalid: float = 0.0


def next_command(task: Task, memory: Memory, rng: Random, skill: str = "", habits: bool = False) -> str:
    """The good next command.

    Without a (relevant) skill the search order is uniformly random over the places not looked into; with one
    it starts where the skill says. `habits` makes the search start at the object's habitual receptacle kind.
    """
    advice = parse_skill(skill)
    if advice is None or not advice.concerns(task):
        advice = Skill()
    return _Decision(task, memory, rng, advice, habits).command()


@dataclass(frozen=True)
class _Decision:
    task: Task
    memory: Memory
    rng: Random
    advice: Skill
    habits: bool

    def command(self) -> str:
        carried = self.memory.carried
        if carried is None:
            return self._fetch()
        if kind_of(carried) != self.task.object_kind:
            return self._put_away(carried)
        if self.task.family == "look-under-lamp":
            return self._look_under_lamp()
        process = self.task.process
        if process and process not in self.memory.processed.get(carried, ()):
            station = PROCESSES[process][0]
            return self._at(station, f"{process} {carried} with {station}")
        target = self._target()
        return self._inside(target, f"put {carried} in {target}")

    def _at(self, place: str, command: str) -> str:
        return command if self.memory.position == place else f"go to {place}"

    def _inside(self, place: str, command: str) -> str:
        return self._at(place, f"open {place}" if self.memory.is_closed(place) else command)

    def _fetch(self) -> str:
        """Take a wanted object that is known to lie somewhere, else look for one."""
        known = [
            (name, place)
            for place, names in self.memory.contents.items()
            for name in names
            if kind_of(name) == self.task.object_kind and not self._is_delivered(name, place)
        ]
        if known:
            name, place = min(known, key=lambda pair: pair[1] != self.memory.position)
            return self._inside(place, f"take {name} from {place}")
        return self._search(self.task.object_kind, self.memory.unseen())

    def _is_delivered(self, name: str, place: str) -> bool:
        done = self.task.process is None or self.task.process in self.memory.processed.get(name, ())
        return done and kind_of(place) == self.task.target_kind

    def _search(self, kind: str, places: list[str]) -> str:
        position = self.memory.position
        if position is not None and position in places:
            return f"open {position}"
        place = self.rng.choice(self._preferred(kind, places) or self._elsewhere())
        return f"go to {place}"

    def _elsewhere(self) -> list[str]:
        return [place for place in self.memory.receptacles if place != self.memory.position]

    def _preferred(self, kind: str, places: list[str]) -> list[str]:
        """The places to try next, narrowed by what the skill or the habits say."""
        named = [place for name, place in self.advice.located if kind_of(name) == kind]
        possible = [place for about, options in self.advice.among if about == kind for place in options]
        excluded = {place for about, options in self.advice.absent if about == kind for place in options}
        habit = OBJECT_KINDS[kind].habit if self.habits and kind != LAMP_KIND else None
        habitual = [place for place in places if kind_of(place) == habit]
        for first in (named, possible, habitual):
            if reachable := [place for place in first if place in places]:
                return reachable[:1] if first is named else reachable
        return [place for place in places if place not in excluded] or places

    def _look_under_lamp(self) -> str:
        place = self.memory.lamp_place()
        if place is None:
            unseen = [p for p in self.memory.unseen() if not is_closed_kind(kind_of(p))]
            return self._search(LAMP_KIND, unseen)
        return self._at(place, f"use {LAMP}")

    def _put_away(self, carried: str) -> str:
        position = self.memory.position
        assert position is not None, "an object was taken somewhere"
        return self._inside(position, f"put {carried} in {position}")

    def _target(self) -> str:
        fitting = [p for p in self.memory.receptacles if kind_of(p) == self.task.target_kind]
        return self.advice.target if self.advice.target in fitting else fitting[0]


def random_move(memory: Memory, rng: Random) -> str:
    """A command that is executable now but need not help."""
    position = memory.position
    moves = [f"go to {place}" for place in memory.receptacles if place != position]
    moves = [rng.choice(moves), "look", "inventory"]
    if position is not None and memory.is_closed(position):
        moves.append(f"open {position}")
    elif position is not None:
        moves += [f"put {memory.carried} in {position}"] if memory.carried else []
        moves += [] if memory.carried else [f"take {name} from {position}" for name in memory.here()]
    return rng.choice(moves)


def invalid_move(task: Task, memory: Memory, rng: Random) -> str:
    """A command of the usual form that is not executable now."""
    place = rng.choice(memory.receptacles)
    moves = []
    if memory.position is not None:
        moves.append(f"go to {memory.position}")
    if place != memory.position or not memory.is_closed(place):
        moves.append(f"open {place}")
    name = f"{task.object_kind} 1"
    if memory.carried is not None or name not in memory.here() or place != memory.position:
        moves.append(f"take {name} from {place}")
    if memory.carried != name:
        moves.append(f"put {name} in {place}")
    if task.process is not None and memory.carried != name:
        moves.append(f"{task.process} {name} with {PROCESSES[task.process][0]}")
    if memory.lamp_place() != memory.position or memory.position is None:
        moves.append(f"use {LAMP}")
    return rng.choice(moves)


def noisy_command(
    task: Task, memory: Memory, rng: Random, noise: Noise, skill: str = "", habits: bool = False
) -> str:
    """The next command under `noise`."""
    draw = rng.random()
    if draw < noise.invalid:
        return invalid_move(task, memory, rng)
    if draw < noise.invalid + noise.random_move:
        return random_move(memory, rng)
    return next_command(task, memory, rng, skill, habits)
