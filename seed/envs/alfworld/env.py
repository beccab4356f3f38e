"""ALFWorld as a `gymnasium.Env` with text observations and text responses."""

from __future__ import annotations

import re
from pathlib import Path
from string import printable
from typing import Any, ClassVar

import gymnasium
from gymnasium.spaces import Text

from sprout.seed.envs.alfworld import text
from sprout.seed.envs.alfworld.backend import BACKENDS, Engine, start_engine
from sprout.seed.envs.alfworld.game import read_game_file
from sprout.seed.envs.alfworld.games import SPLITS, choose_game, data_folder, family_of
from sprout.seed.envs.alfworld.interpreter import Frame
from sprout.seed.envs.response import FORMATS, Format, Parsed, parse_response
from sprout.seed.envs.seeding import split_and_seed

MAX_TURNS = 30
_TASK = re.compile(r"Your task is to: *(.+)")


class AlfworldEnv(gymnasium.Env[str, str]):
    """One episode is one game of ALFWorld (arXiv 2010.03768): `reward` and termination when the task is done.

    data           folder with json_2.1.1 in it; None: `$ALFWORLD_DATA`
    format         how responses must look: see `sprout.seed.envs.response`
    list_commands  whether observations end in a list of what is possible now
    backend        own: our interpreter; textworld: the original engine (extra `alfworld`)
    select, report the split behind these panels

    `reset(seed=..., options={"split": ...})` takes the seed-th game of a fixed shuffled order, modulo their
    number; splits are train, valid_seen, valid_unseen, select and report. `options={"game": path}` plays one
    file. `info` holds `task`, `family`, `split`, `game`, `valid` (the last command was possible),
    `well_formed` (the response kept the format), `command`, `admissible_commands` and `success`.
    """

    analyzer_instructions: ClassVar[dict[str, str]] = text.ANALYZER_INSTRUCTIONS
    formats: ClassVar[tuple[Format, ...]] = FORMATS

    def __init__(
        self,
        max_turns: int = MAX_TURNS,
        data: str | None = None,
        format: Format = "think",
        list_commands: bool = False,
        success_reward: float = 1.0,
        backend: str = "own",
        select: str = "valid_seen",
        report: str = "valid_unseen",
    ) -> None:
        if max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, not {max_turns}")
        for name, value, known in (
            ("format", format, FORMATS),
            ("backend", backend, BACKENDS),
            ("select", select, SPLITS),
            ("report", report, SPLITS),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        self.max_turns = max_turns
        self.format, self.list_commands, self.success_reward = format, list_commands, success_reward
        self.backend = backend
        self.folder = data_folder(data)
        self.system_prompt = text.system_prompt(format)
        self.observation_space = Text(max_length=16384, charset=printable)
        self.action_space = Text(max_length=16384, charset=printable)
        self.engine: Engine | None = None
        self.game: Path | None = None
        self._aliases = {"select": select, "report": report} | {name: name for name in SPLITS}
        self._split = "train"
        self._turn = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; without a seed one is drawn from the gymnasium generator."""
        self._split, seed = split_and_seed(self, seed, options)
        if self._split not in self._aliases:
            raise ValueError(f"unknown split {self._split!r}; use one of {', '.join(self._aliases)}")
        given = (options or {}).get("game")
        path = Path(given) if given else choose_game(self.folder, self._aliases[self._split], seed)
        if path != self.game or self.engine is None:
            self._leave()
            self.engine, self.game = start_engine(self.backend, path), path
        self._family = family_of(path)
        self._turn = 0
        self._frame = self.engine.reset()
        self._task = _task_of(self._frame.observation)
        return self._observation(), self._info(Parsed("", True), valid=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out the command in a response; what is not possible costs the turn and nothing else."""
        if self.engine is None:
            raise ValueError("call reset before step")
        parsed = parse_response(action, self.format)
        valid = parsed.command in self._frame.commands
        self._frame = self.engine.step(parsed.command)
        self._turn += 1
        success = self._frame.won
        truncated = not success and self._turn >= self.max_turns
        reward = self.success_reward if success else 0.0
        return self._observation(), reward, success, truncated, self._info(parsed, valid)

    def close(self) -> None:
        """Leave the game."""
        self._leave()

    @property
    def frame(self) -> Frame:
        """The present state as the engine tells it."""
        return self._frame

    def oracle_skill(self) -> str:
        """The way to do the present task, from the game's own walkthrough."""
        if self.game is None:
            raise ValueError("call reset before asking for a skill")
        return f"Do this, in this order: {', '.join(read_game_file(self.game).walkthrough)}."

    def _leave(self) -> None:
        close = getattr(self.engine, "close", None)
        if close:
            close()
        self.engine = self.game = None

    def _observation(self) -> str:
        frame = self._frame
        return (
            text.with_commands(frame.observation, frame.commands) if self.list_commands else frame.observation
        )

    def _info(self, parsed: Parsed, valid: bool) -> dict[str, Any]:
        return {
            "task": self._task,
            "family": self._family,
            "split": self._split,
            "game": str(self.game),
            "valid": valid,
            "well_formed": parsed.well_formed,
            "command": parsed.command,
            "admissible_commands": list(self._frame.commands),
            "success": self._frame.won,
        }


def _task_of(introduction: str) -> str:
    """The task as the introduction states it; its last line if it is said in other words."""
    found = _TASK.search(introduction)
    return found[1].strip() if found else introduction.strip().rpartition("\n")[2]
