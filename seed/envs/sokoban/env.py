"""Sokoban as a `gymnasium.Env` with text observations and text responses; rooms can be rendered as images."""

from __future__ import annotations

import re
from string import printable
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Text

from sprout.seed.envs.response import FORMATS, Format, Parsed, format_response, parse_response
from sprout.seed.envs.seeding import split_and_seed
from sprout.seed.envs.sokoban import text
from sprout.seed.envs.sokoban.analyzer import analyze
from sprout.seed.envs.sokoban.image import paint
from sprout.seed.envs.sokoban.levels import Level, generate_level, level_of
from sprout.seed.envs.sokoban.room import BOX_ON_TARGET, MOST_BOXES, STEPS, Position, draw

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sprout.engine.chat import ChatFormat
    from sprout.engine.forest import Turn
    from sprout.seed.schema import RolloutSection

MAX_TURNS = 15
STEP_REWARD, BOX_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0
_MOVE = re.compile(rf"\b(?:{'|'.join(STEPS)})\b")


class SokobanEnv(gymnasium.Env[str, str]):
    """One episode is one room of 6 x 6 cells, walls around it, that is solved when every box is on a target.

    boxes    how many boxes, and targets
    format   how responses must look: see `sprout.seed.envs.response`

    Rewards: -0.1 a turn, +1 for a box pushed onto a target, -1 for one pushed off, +10 when solved.

    `reset(seed=..., options={"split": "train" | "select" | "report"})` fixes the episode completely; splits
    are disjoint by room (walls and targets). Every start can be solved within `max_turns`.
    `options={"room": text}` plays a room as observations show it. `info` holds `task`, `family` (short,
    medium or long: the shortest solution has up to 5, up to 10, or more moves), `split`, `valid` (the move
    was possible), `well_formed` (the response kept the format), `command`, `admissible_commands` and
    `success`. `render()` gives the room as an image.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012, as gymnasium has it
    render_mode = "rgb_array"
    analyzer_instructions: ClassVar[dict[str, str]] = text.ANALYZER_INSTRUCTIONS
    scripted_analyzer = staticmethod(analyze)
    formats: ClassVar[tuple[Format, ...]] = FORMATS

    def __init__(self, max_turns: int = MAX_TURNS, boxes: int = 1, format: Format = "think") -> None:
        if max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, not {max_turns}")
        if not 1 <= boxes <= MOST_BOXES:
            raise ValueError(f"boxes must be within 1 to {MOST_BOXES}, not {boxes}")
        if format not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {format!r}")
        self.max_turns, self.boxes, self.format = max_turns, boxes, format
        self.system_prompt = text.system_prompt(format)
        self.observation_space = Text(max_length=256, charset=printable + BOX_ON_TARGET)
        self.action_space = Text(max_length=16384, charset=printable)
        self._level: Level | None = None
        self._split = "train"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; without a seed one is drawn from the gymnasium generator."""
        self._split, seed = split_and_seed(self, seed, options)
        drawing = (options or {}).get("room")
        self._level = (
            level_of(drawing) if drawing else generate_level(self._split, seed, self.boxes, self.max_turns)
        )
        self._position = self._level.start
        self._turn = 0
        return draw(self._level.room, self._position), self._info(Parsed("", True), valid=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make the move in a response; what is not possible costs the turn and nothing else."""
        room, parsed = self.level.room, parse_response(action, self.format)
        valid = parsed.command in room.moves(self._position)
        boxes = self._position.boxes
        if valid:
            self._position = room.after(self._position, parsed.command) or self._position
        self._turn += 1
        solved = room.is_solved(self._position)
        reward = STEP_REWARD + BOX_REWARD * (
            len(self._position.boxes & room.targets) - len(boxes & room.targets)
        )
        reward += SOLVED_REWARD * solved
        truncated = not solved and self._turn >= self.max_turns
        return draw(room, self._position), reward, solved, truncated, self._info(parsed, valid)

    def render(self) -> np.ndarray:
        """The room as an image: uint8 [96, 96, 3], red, green and blue."""
        return paint(self.level.room, self._position)

    @property
    def level(self) -> Level:
        """The present level. Raises ValueError before the first reset."""
        if self._level is None:
            raise ValueError("call reset before using the room")
        return self._level

    @property
    def position(self) -> Position:
        """Where the player and the boxes are."""
        return self._position

    def expert_command(self) -> str | None:
        """The next move of a shortest solution; None if there is none any more."""
        return self.level.best_move(self._position)

    def respond(self, command: str) -> str:
        """A well-formed response with this move."""
        return format_response(command, f"I go {command}.", self.format)

    def oracle_skill(self) -> str:
        """A shortest solution of the level."""
        return text.write_moves(self.level.solution())

    def skill_is_right(self, skill: str) -> bool:
        """Whether the moves that `skill` names, in their order, solve the level."""
        return self.level.solves(_MOVE.findall(skill.lower()))

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A small tokenizer made from expert play, for a model that knows nothing but this game."""
        from sprout.seed.envs.lessons import play_tokenizer

        return play_tokenizer(self)

    def lesson(self, chat: ChatFormat, layout: RolloutSection, **sizes: int) -> list[Turn]:
        """Turns that teach a model to play and to analyze; see `sprout.seed.envs.lessons`."""
        from sprout.seed.envs.lessons import lesson

        return lesson(self, chat, layout, **sizes)

    def _info(self, parsed: Parsed, valid: bool) -> dict[str, Any]:
        room, moves = self.level.room, self.level.distances[self.level.start]
        return {
            "task": text.TASK,
            "family": "short" if moves <= 5 else "medium" if moves <= 10 else "long",
            "split": self._split,
            "valid": valid,
            "well_formed": parsed.well_formed,
            "command": parsed.command,
            "admissible_commands": room.moves(self._position),
            "success": room.is_solved(self._position),
        }
