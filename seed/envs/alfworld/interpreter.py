"""Plays a game file: the state as sets of facts, texts from the file's own grammar.

Exact to the original engine (TextWorld's PDDL games over Fast Downward's translation) in text, possible
commands, reward and end, with its habits: actions that would change nothing are not offered (going where one
is), and a fact that an action made false can be asked for as `not_NAME`, one that never was true cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sprout.seed.envs.alfworld.facts import Tables, with_own
from sprout.seed.envs.alfworld.game import Action, Game, broken
from sprout.seed.envs.alfworld.grammar import parse_symbols
from sprout.seed.envs.alfworld.pddl import Row

NOTHING_HAPPENS = "Nothing happens."
INTRODUCTION = parse_symbols("#intro#")
FEW_ROWS = 2  # of the predicates an action reads, for its bindings to be remembered by state
Play = tuple[Action, Row]


@dataclass(frozen=True)
class Frame:
    """What a player gets: the text, every command that is possible now (sorted), whether the game is won."""

    observation: str
    commands: tuple[str, ...]
    won: bool

    @property
    def reward(self) -> float:
        return float(self.won)


class Interpreter:
    """One play of a game. `tables` are the facts that hold now, `plays` what each possible command does."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.tables: Tables = Tables()
        self.plays: dict[str, Play] = {}
        self._won = False
        self._goal_versions: tuple[int, ...] = ()

    def reset(self) -> Frame:
        """Start from the beginning. Raises GameFileError for a grammar that does not fit the game."""
        return self._guarded(self._begin)

    def step(self, command: str) -> Frame:
        """Carry out a command; one that is not possible now changes nothing. Raises GameFileError."""
        return self._guarded(self._execute, command.strip())

    def _guarded(self, play: Callable[..., Frame], *arguments: str) -> Frame:
        """What is wrong with texts is often found when they are to be written."""
        try:
            return play(*arguments)
        except (ValueError, RecursionError) as error:
            raise broken(self.game.file.path, error) from None

    def _begin(self) -> Frame:
        negative = (f"not_{name}" for name in self.game.fluents)
        self.tables = with_own(self.game.tables, (*self.game.fluents, *negative))
        self._goal_versions = ()
        return self._frame(self.game.writer.write(INTRODUCTION, {}, self.tables))

    def _execute(self, command: str) -> Frame:
        play = self.plays.get(command)
        if play is None:
            return self._frame(NOTHING_HAPPENS)
        action, values = play
        self._apply(action, values)
        return self._frame(self.game.writer.write(action.feedback, action.mapped(values), self.tables))

    def _apply(self, action: Action, values: Row) -> None:
        happening = [e for e in action.effects if e.condition is None or e.condition(values, self.tables)]
        added = [(effect.predicate, effect.row(values)) for effect in happening if effect.positive]
        removed = [(effect.predicate, effect.row(values)) for effect in happening if not effect.positive]
        for predicate, row in removed:
            self.tables[predicate].discard(row)
            if (predicate, row) not in added:
                self.tables[f"not_{predicate}"].add(row)
        for predicate, row in added:
            self.tables[predicate].add(row)
            self.tables[f"not_{predicate}"].discard(row)

    def _frame(self, observation: str) -> Frame:
        self.plays = {}
        for action in self.game.actions:
            for command, values in self._possible(action):
                self.plays.setdefault(command, (action, values))
        return Frame(observation, tuple(sorted(self.plays)), self._is_won())

    def _is_won(self) -> bool:
        versions = tuple([self.tables[name].version for name in self.game.goal_predicates])
        if versions != self._goal_versions:
            self._goal_versions = versions
            self._won = self.game.goal((), self.tables)
        return self._won

    def _possible(self, action: Action) -> list[tuple[str, Row]]:
        """Commands of an action and the values behind them."""
        read = [self.tables[name].rows for name in action.fluents]
        if action.command_parameters is None or any(len(rows) > FEW_ROWS for rows in read):
            return [(self._command(action, values), values) for values in action.bindings(self.tables)]
        key = (action.name, *map(frozenset, read))
        known = self.game.possible.get(key)
        if known is None:
            known = [(self._command(action, values), values) for values in action.bindings(self.tables)]
            self.game.possible[key] = known
        return known

    def _command(self, action: Action, values: Row) -> str:
        if action.command_parameters is None:
            return self.game.writer.write(action.command, action.mapped(values), self.tables)
        key = (action.name, tuple([values[i] for i in action.command_parameters]))
        command = self.game.commands.get(key)
        if command is None:
            command = self.game.writer.write(action.command, action.mapped(values), self.tables)
            self.game.commands[key] = command
        return command
