"""Engines that can play a game file: our interpreter, or the original one for comparison."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from sprout.seed.envs.alfworld.game import load_game
from sprout.seed.envs.alfworld.interpreter import Frame, Interpreter

BACKENDS = ("own", "textworld")


class Engine(Protocol):
    """One play of one game."""

    def reset(self) -> Frame:
        """The game's beginning."""

    def step(self, command: str) -> Frame:
        """What a command led to."""


class TextWorldEngine:
    """The original engine (extra `alfworld`): about a hundred times slower, the yardstick of ours."""

    def __init__(self, path: Path) -> None:
        try:
            import textworld
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        except ImportError as error:
            raise ImportError(
                f"env.options.backend=textworld needs the original engine ({error}): "
                "pip install 'sprout-rl[alfworld]', or use backend=own"
            ) from error
        warnings.warn(
            "the original engine evaluates Python expressions that stand in a game file: give it only files "
            "that you trust; backend=own evaluates none",
            stacklevel=2,
        )
        # policy commands stay off: they would plan a whole solution at every step
        infos = textworld.EnvInfos(admissible_commands=True, won=True)
        with _arguments_kept():
            self._environment = textworld.start(str(path), infos, wrappers=[AlfredDemangler()])

    def reset(self) -> Frame:
        with _arguments_kept():
            return self._frame(self._environment.reset())

    def step(self, command: str) -> Frame:
        state, _, _ = self._environment.step(command)
        return self._frame(state)

    def close(self) -> None:
        self._environment.close()

    @staticmethod
    def _frame(state: Any) -> Frame:
        return Frame(state["feedback"], tuple(state["admissible_commands"]), bool(state["won"]))


@contextmanager
def _arguments_kept() -> Iterator[None]:
    """The planner's translation overwrites sys.argv, which is the command line of this process."""
    kept = list(sys.argv)
    try:
        yield
    finally:
        sys.argv = kept


def start_engine(backend: str, path: Path) -> Engine:
    """An engine with the game of `path`. Raises GameFileError, and ImportError without the extra."""
    return Interpreter(load_game(path)) if backend == "own" else TextWorldEngine(path)
