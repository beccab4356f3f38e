"""One game file, read and made ready to play. Nothing here changes while it is played."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from sprout.seed.envs.alfworld.conditions import (
    Join,
    World,
    compile_joins,
    compile_test,
    predicates_of,
    row_of,
)
from sprout.seed.envs.alfworld.facts import Tables, tables_of
from sprout.seed.envs.alfworld.grammar import Each, Reference, Symbols, Thing, Value, parse_grammar
from sprout.seed.envs.alfworld.names import display_names
from sprout.seed.envs.alfworld.pddl import Domain, Problem, Row, Schema, Typed, parse_domain, parse_problem
from sprout.seed.envs.alfworld.rendering import Mapped, Writer

FIELDS = ("pddl_domain", "pddl_problem", "grammar")
KEPT_GAMES = 32


class GameFileError(ValueError):
    """A file that is no game; the message names it and what to do."""


def broken(path: Path | None, why: object) -> GameFileError:
    """What to raise for a game file that cannot be read or played."""
    mend = "delete the file and download the games again with `alfworld-download`"
    return GameFileError(f"{path}: {why}; {mend}")


@dataclass(frozen=True)
class GameFile:
    """The parts of a game file as they are written there."""

    path: Path
    domain: str
    problem: str
    grammar: str
    walkthrough: tuple[str, ...]
    solvable: bool


@dataclass(frozen=True)
class GroundEffect:
    """An effect of a schema: from the values of its parameters to the row that changes, and when."""

    predicate: str
    positive: bool
    row: Callable[[Sequence[str]], Row]
    condition: Callable[[Sequence[str], Tables], bool] | None


@dataclass(frozen=True)
class Action:
    """A schema that can be played. `fluents` are the changing predicates that its precondition reads.

    `command_parameters` are the positions of the values that its command's text depends on; None if it
    depends on the state too.
    """

    name: str
    parameters: tuple[Typed, ...]
    joins: tuple[Join, ...]
    effects: tuple[GroundEffect, ...]
    changes_nothing: Callable[[Row], bool] | None
    command: Symbols
    feedback: Symbols
    fluents: tuple[str, ...]
    command_parameters: tuple[int, ...] | None

    def bindings(self, tables: Tables) -> Iterator[Row]:
        """Values of the parameters with which the action is possible now, each once."""
        seen: set[Row] = set()
        count = len(self.parameters)
        for join in self.joins:
            for values in join.assignments(tables):
                row = tuple(values[:count])
                if row not in seen and not (self.changes_nothing and self.changes_nothing(row)):
                    seen.add(row)
                    yield row

    def mapped(self, values: Row) -> Mapped:
        """The parameters as placeholders of the grammar."""
        return {(n.removeprefix("?"), kind): v for (n, kind), v in zip(self.parameters, values, strict=True)}


@dataclass(frozen=True)
class Game:
    """A game ready to play: `tables` at the start, `fluents` the predicates that actions change.

    `commands` and `possible` remember what is the same in every play: texts of commands, and what is possible
    by those actions that read little more than where the player is.
    """

    file: GameFile
    domain: Domain
    problem: Problem
    tables: Tables
    fluents: frozenset[str]
    actions: tuple[Action, ...]
    writer: Writer
    goal: Callable[[Sequence[str], Tables], bool]
    goal_predicates: frozenset[str]
    commands: dict[tuple[str, Row], str] = field(default_factory=dict, repr=False)
    possible: dict[tuple[object, ...], list[tuple[str, Row]]] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> dict[str, str]:
        """What the player calls things, by id."""
        return {name: thing.name for name, thing in self.writer.things.items()}


def read_game_file(path: str | Path) -> GameFile:
    """The parts of a game file. Raises GameFileError."""
    path = Path(path)
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise GameFileError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise broken(path, f"is not JSON ({error})") from None
    for name in FIELDS:
        if not isinstance(data, dict) or not isinstance(data.get(name), str):
            raise broken(path, f"has no text {name!r}")
    walkthrough = data.get("walkthrough") or []
    if not isinstance(walkthrough, list) or not all(isinstance(command, str) for command in walkthrough):
        raise broken(path, "its walkthrough is no list of commands")
    texts = (data[name] for name in FIELDS)
    domain, problem, grammar = texts
    return GameFile(
        path, domain, problem, grammar, tuple(walkthrough), data.get("solvable", True) is not False
    )


def load_game(path: str | Path) -> Game:
    """The game in a file; the last few are kept, so a group's members share one. Raises GameFileError."""
    path = Path(path)
    try:
        return _load_game(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise GameFileError(f"{path}: cannot be read ({error.strerror})") from None


@lru_cache(maxsize=KEPT_GAMES)
def _load_game(path: Path, _modified: int) -> Game:
    file = read_game_file(path)
    try:
        return build_game(file)
    except (ValueError, RecursionError) as error:
        raise broken(path, error) from None


def build_game(file: GameFile) -> Game:
    """Parses and compiles a game file's texts. Raises ValueError."""
    domain = parse_domain(file.domain)
    problem = parse_problem(file.problem, domain)
    grammar = parse_grammar(file.grammar)
    tables = tables_of(problem.facts)
    names = display_names(name for _, row in problem.facts for name in row)
    things = {name: Thing(name, problem.types[name], shown) for name, shown in names.items()}
    fluents = frozenset(effect.atom[0] for schema in domain.schemas.values() for effect in schema.effects)
    world = World(domain, problem.types, tables)
    actions = []
    for name, schema in domain.schemas.items():
        if name not in grammar.actions:
            raise ValueError(f"the grammar has no text for the action {name!r}")
        text = grammar.actions[name]
        actions.append(_action(schema, world, fluents, text.command, text.feedback))
    return Game(
        file, domain, problem, tables, fluents, tuple(actions), Writer(grammar, domain, things),
        compile_test(problem.goal, world), predicates_of(problem.goal),
    )  # fmt: skip


def _action(
    schema: Schema, world: World, fluents: frozenset[str], command: Symbols, feedback: Symbols
) -> Action:
    parameters = [name for name, _ in schema.parameters]
    joins = tuple(compile_joins(schema.parameters, schema.precondition, world))
    effects = tuple(
        GroundEffect(
            effect.atom[0],
            effect.positive,
            row_of(effect.atom, parameters),
            effect.condition and compile_test(effect.condition, world, schema.parameters),
        )
        for effect in schema.effects
    )
    reads = predicates_of(schema.precondition) & fluents
    return Action(
        schema.name,
        schema.parameters,
        joins,
        effects,
        _noop_test(joins, effects, parameters),
        command,
        feedback,
        tuple(sorted(reads)),
        _command_parameters(command, schema.parameters, fluents),
    )


def _noop_test(
    joins: Sequence[Join], effects: Sequence[GroundEffect], parameters: list[str]
) -> Callable[[Row], bool] | None:
    """Whether an action would only assert what it requires. The planner knows no such actions.

    None for an action that always changes something.
    """
    required = [_required(join, parameters) for join in joins]
    added = [(effect.predicate, effect.row) for effect in effects if effect.positive]
    removed = [(effect.predicate, effect.row) for effect in effects if not effect.positive]
    known = {name for atoms in required for name, _ in atoms}
    if any(effect.condition for effect in effects) or not {name for name, _ in added} <= known:
        return None

    def test(values: Row) -> bool:
        return all(_is_among(one, atoms, values) for atoms in required for one in added) and all(
            _is_among(one, added, values) for one in removed
        )

    return test


Grounded = tuple[str, Callable[[Sequence[str]], Row]]


def _is_among(one: Grounded, atoms: Sequence[Grounded], values: Row) -> bool:
    row = one[1](values)
    return any(name == one[0] and other(values) == row for name, other in atoms)


def _required(join: Join, parameters: list[str]) -> list[Grounded]:
    """The atoms over parameters alone that a join asks for."""
    return [
        (atom[0], row_of(atom, parameters))
        for atom in join.atoms
        if all(not word.startswith("?") or word in parameters for word in atom[1:])
    ]


def _command_parameters(
    command: Symbols, parameters: Sequence[Typed], fluents: frozenset[str]
) -> tuple[int, ...] | None:
    """Positions of the parameters that a command's text depends on; None if it depends on the state too."""
    names: set[str] = set()
    for symbol in command:
        inner = symbol.inner if isinstance(symbol, Each) else symbol
        query = symbol.query if isinstance(symbol, Each) else None
        if isinstance(inner, Reference) or (query and query.predicates & fluents):
            return None
        names |= inner.names if isinstance(inner, Value) else set()
        names |= {name for _, placeholders in query.atoms for name, _ in placeholders} if query else set()
    return tuple(i for i, (name, _) in enumerate(parameters) if name.removeprefix("?") in names)
