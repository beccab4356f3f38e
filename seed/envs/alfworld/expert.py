"""A scripted player that knows the whole house: for demonstrations, with as much noise as one likes.

It plans anew at every turn from the facts and the goal of the game file, so it recovers from whatever
happened before. The walkthroughs in the files cannot: they go wrong after the first other command.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from sprout.seed.envs.alfworld.env import AlfworldEnv
from sprout.seed.envs.alfworld.game import Game
from sprout.seed.envs.alfworld.interpreter import Interpreter
from sprout.seed.envs.alfworld.pddl import atoms_of
from sprout.seed.envs.response import Decision, format_response

_STATIONS = {"isclean": "cleanobject", "ishot": "heatobject", "iscool": "coolobject"}
_STATION_TYPES = {
    "isclean": ("sinkbasintype", "sinktype"),
    "ishot": ("microwavetype",),
    "iscool": ("fridgetype",),
}


@dataclass(frozen=True)
class Noise:
    """Per-turn probabilities of departing from the good command.

    wander        go to a place that was not visited yet, as long as no wanted object is in hand
    random_move   any command that is possible and can be made good
    invalid       a command that is not
    """

    wander: float = 0.0
    random_move: float = 0.0
    invalid: float = 0.0

    def __post_init__(self) -> None:
        if min(self.wander, self.random_move, self.invalid) < 0 or self.invalid + self.random_move > 1:
            raise ValueError(f"noise needs probabilities, not {self}")


@dataclass(frozen=True)
class Demonstration:
    """One turn of a scripted episode."""

    observation: str
    response: str
    valid: bool


@dataclass(frozen=True)
class Wish:
    """What the goal asks for, in types of the game file.

    `count` objects of `kind`, having been made `state`, in one receptacle of `place` or in the hand beside a
    `lamp` that was switched on.
    """

    kind: str
    count: int
    place: str | None
    lamp: str | None
    state: str | None


class Expert:
    """Plays one game. Raises ValueError for a goal that is none of ALFWorld's families."""

    def __init__(self, play: Interpreter, rng: Random, noise: Noise | None = None) -> None:
        self.play, self.rng, self.noise = play, rng, noise or Noise()
        self.wish = _wish(play.game)
        self.visited: set[str] = set()

    def decide(self) -> Decision:
        """The next command, under the noise."""
        here = self._here()
        self.visited |= here
        draw = self.rng.random()
        if draw < self.noise.invalid:
            return Decision(self._impossible(), "I try something.")
        if draw < self.noise.invalid + self.noise.random_move:
            return Decision(self.rng.choice(self._harmless()), "I look what else there is.")
        if self.rng.random() < self.noise.wander and self._held() is None:
            unseen = sorted(set(self._places()) - self.visited)
            if unseen:
                return self._at(
                    self.rng.choice(unseen), f"I have not found a {self._word(self.wish.kind)} yet."
                )
        return self.best()

    def best(self) -> Decision:
        """The good next command."""
        held = self._held()
        if held is None:
            return self._fetch()
        if not self._is_a(held, self.wish.kind):
            return self._put_anywhere(held)
        if self.wish.lamp is not None:
            return self._use_lamp()
        if self.wish.state is not None and not self._true(self.wish.state, held):
            return self._process(held)
        place = self._target()
        return self._move(
            held, place, f"The {self._name(held)} belongs in the {self._word(self.wish.place or '')}."
        )

    def _fetch(self) -> Decision:
        target = self._target() if self.wish.place else None
        wanted = [
            (thing, place)
            for thing, place in sorted(self.play.tables["inreceptacle"].rows)
            if self._is_a(thing, self.wish.kind) and self._true("pickupable", thing)
            and not (place == target and self._is_ready(thing))
        ]  # fmt: skip
        if not wanted:
            raise ValueError(f"{self.play.game.file.path}: no {self._word(self.wish.kind)} is left to take")
        here = self._here()
        thing, place = min(wanted, key=lambda pair: (pair[1] not in here, pair))
        thought = f"I need a {self._word(self.wish.kind)}; the {self._name(thing)} is at {self._name(place)}."
        return self._inside(place, "pickupobject", thing, thought)

    def _process(self, held: str) -> Decision:
        state = self.wish.state or ""
        types = _STATION_TYPES[state]
        stations = [p for p in self._places() if any(self._true("receptacletype", p, kind) for kind in types)]
        station = min(stations, key=lambda place: (place not in self._here(), place))
        thought = f"I have the {self._name(held)}; next is the {self._name(station)}."
        if station not in self._here():
            return self._at(station, thought)
        return Decision(self._command(_STATIONS[state], station, held), thought)

    def _use_lamp(self) -> Decision:
        lamps = [
            (place, lamp)
            for lamp, place in self.play.tables["inreceptacle"].rows
            if self._is_a(lamp, self.wish.lamp or "") and self._true("toggleable", lamp)
        ]
        place, lamp = min(lamps, key=lambda pair: (pair[0] not in self._here(), pair))
        thought = f"I look at it under the {self._name(lamp)}."
        if place not in self._here():
            return self._at(place, thought)
        return Decision(self._command("toggleobject", lamp), thought)

    def _put_anywhere(self, held: str) -> Decision:
        """Put away what is not wanted, here if possible."""
        fitting = [place for place in self._places() if self._fits(held, place)]
        if not fitting:
            raise ValueError(f"{self.play.game.file.path}: no place holds the {self._name(held)} in hand")
        place = min(
            fitting, key=lambda place: (place not in self._here(), self._true("openable", place), place)
        )
        return self._move(held, place, f"I do not need the {self._name(held)}.")

    def _move(self, held: str, place: str, thought: str) -> Decision:
        return self._inside(place, "putobject", held, thought)

    def _inside(self, place: str, action: str, thing: str, thought: str) -> Decision:
        """Do something with what is in a place: go there, open it, do it."""
        if place not in self._here():
            return self._at(place, thought)
        if self._true("openable", place) and not self._true("opened", place):
            return Decision(self._command("openobject", place), f"The {self._name(place)} is closed.")
        return Decision(self._command(action, thing, place), thought)

    def _at(self, place: str, thought: str) -> Decision:
        return Decision(self._command("gotolocation", place), thought)

    def _target(self) -> str:
        """The receptacle to fill: the one that holds most of what is wanted already."""
        places = [
            place for place in self._places()
            if self._true("receptacletype", place, self.wish.place or "")
            and self._true("cancontain", self.wish.place or "", self.wish.kind)
        ]  # fmt: skip
        if not places:
            raise ValueError(
                f"{self.play.game.file.path}: no {self._word(self.wish.place or '')} can be filled"
            )
        inside = self.play.tables["inreceptacle"].rows
        ready = {place: sum(p == place and self._is_ready(thing) for thing, p in inside) for place in places}
        return min(places, key=lambda place: (-ready[place], self._true("openable", place), place))

    def _is_ready(self, thing: str) -> bool:
        return self._is_a(thing, self.wish.kind) and (
            self.wish.state is None or self._true(self.wish.state, thing)
        )

    def _harmless(self) -> list[str]:
        """What is possible, but for taking a thing that no place would hold: hands would stay full."""
        return sorted(
            command
            for command, (action, values) in self.play.plays.items()
            if action.name != "pickupobject"
            or any(self._fits(thing, place) for thing in values for place in self._places())
        )

    def _impossible(self) -> str:
        """A command of the usual form that is not possible now."""
        names = self.play.game.names
        place = self.rng.choice(sorted(self._places()))
        held = self._held()
        thing = self.rng.choice(
            sorted(thing for thing, _ in self.play.tables["inreceptacle"].rows) or [place]
        )
        options = [f"take {names[thing]} from {names[place]}", f"open {names[place]}", f"use {names[thing]}"]
        options += [
            f"move {names[held or thing]} to {names[place]}",
            f"clean {names[held or thing]} with {names[place]}",
        ]
        return next(
            (one for one in self.rng.sample(options, len(options)) if one not in self.play.plays), "wait"
        )

    def _command(self, action: str, *things: str) -> str:
        for command, (possible, values) in self.play.plays.items():
            if possible.name == action and values[-len(things) :] and set(things) <= set(values):
                return command
        raise ValueError(
            f"{self.play.game.file.path}: {action} {' '.join(map(self._name, things))} is not possible"
        )

    def _places(self) -> list[str]:
        return sorted({place for place, _ in self.play.tables["receptacleatlocation"].rows})

    def _here(self) -> set[str]:
        located = self.play.tables["receptacleatlocation"]
        return {
            place
            for _, location in self.play.tables["atlocation"].rows
            for place, _ in located.matching(1, location)
        }

    def _held(self) -> str | None:
        return next((thing for _, thing in self.play.tables["holds"].rows), None)

    def _fits(self, thing: str, place: str) -> bool:
        kinds = [kind for _, kind in self.play.tables["objecttype"].matching(0, thing)]
        places = [kind for _, kind in self.play.tables["receptacletype"].matching(0, place)]
        return any(self._true("cancontain", p, kind) for p in places for kind in kinds)

    def _is_a(self, thing: str, kind: str) -> bool:
        return self._true("objecttype", thing, kind)

    def _true(self, predicate: str, *row: str) -> bool:
        return row in self.play.tables[predicate].rows

    def _name(self, thing: str) -> str:
        return self.play.game.names[thing]

    def _word(self, kind: str) -> str:
        return kind.removesuffix("type")


def demonstrate(
    env: AlfworldEnv, split: str, seed: int, noise: Noise | None = None
) -> Iterator[tuple[Demonstration, dict[str, object]]]:
    """Plays one episode with an expert; yields every turn with the info that followed.

    Raises ValueError for an environment with another backend than `own`: an expert sees the facts.
    """
    observation, _ = env.reset(seed=seed, options={"split": split})
    if not isinstance(env.engine, Interpreter):
        raise ValueError("an expert sees the facts: use env.options.backend=own")
    expert = Expert(env.engine, Random(f"{split}/{seed}"), noise)
    ended = False
    while not ended:
        decision = expert.decide()
        response = format_response(decision.command, decision.thought, env.format)
        following, _, terminated, truncated, info = env.step(response)
        yield Demonstration(observation, response, bool(info["valid"])), info
        observation, ended = following, terminated or truncated


def _wish(game: Game) -> Wish:
    """What the goal's atoms say, whatever quantifiers stand around them."""
    atoms = list(atoms_of(game.problem.goal))
    lamps = {atom[1] for atom in atoms if atom[0] == "istoggled"}
    lamp = next((atom[2] for atom in atoms if atom[0] == "objecttype" and atom[1] in lamps), None)
    objects = {(atom[1], atom[2]) for atom in atoms if atom[0] == "objecttype" and atom[1] not in lamps}
    place = next((atom[2] for atom in atoms if atom[0] == "receptacletype"), None)
    state = next((atom[0] for atom in atoms if atom[0] in _STATIONS), None)
    kinds = {kind for _, kind in objects}
    if len(kinds) != 1 or (place is None) == (lamp is None):
        raise ValueError(f"{game.file.path}: its goal is not of a family that the expert knows")
    return Wish(kinds.pop(), len(objects), place, lamp, state)
