"""EZPoints as a `gymnasium.Env` with text observations and JSON responses; it renders as an image."""

from __future__ import annotations

import re
from string import printable
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Text

from sprout.seed.envs.ezpoints import text
from sprout.seed.envs.ezpoints.analyzer import analyze
from sprout.seed.envs.ezpoints.cards import Hand, deal
from sprout.seed.envs.ezpoints.formula import (
    ACTIONS,
    EQUALS,
    NUMBERS,
    OPERATORS,
    TARGET,
    solutions,
    unused,
    value,
)
from sprout.seed.envs.ezpoints.image import paint
from sprout.seed.envs.ezpoints.response import FORMATS, Format, format_action, parse_action
from sprout.seed.envs.response import Parsed
from sprout.seed.envs.seeding import split_and_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sprout.engine.chat import ChatFormat
    from sprout.engine.forest import Turn
    from sprout.seed.schema import RolloutSection

MAX_TURNS = 8
WIN_REWARD = 10.0
_NAMED = re.compile(r"(?<![\d])(?:10|[1-9])(?!\d)|[+*=]")


class EZPointsEnv(gymnasium.Env[str, str]):
    """One episode is a hand of two cards and a formula that is written token by token and is to make 12.

    format    how responses must look: see `sprout.seed.envs.ezpoints.response`
    penalty   taken for an action that is not possible and for a wrong formula; the game that this one
              follows (RL4VLM, arXiv 2405.10292) takes 1

    `=` ends the episode; the reward is 10 if the formula makes 12 with both cards, else 0 without a penalty.

    `reset(seed=..., options={"split": "train" | "select" | "report"})` fixes the episode completely; splits
    are disjoint in cards. `info` holds `task`, `family` (add or multiply), `split`, `valid` (the action was
    possible), `well_formed` (the response kept the format), `command`, `admissible_commands` and `success`.
    `render()` gives cards and formula as an image.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012, as gymnasium has it
    render_mode = "rgb_array"
    analyzer_instructions: ClassVar[dict[str, str]] = text.ANALYZER_INSTRUCTIONS
    scripted_analyzer = staticmethod(analyze)
    formats: ClassVar[tuple[Format, ...]] = FORMATS

    def __init__(self, max_turns: int = MAX_TURNS, format: Format = "json", penalty: float = 0.0) -> None:
        if max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, not {max_turns}")
        if format not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {format!r}")
        if not 0 <= penalty < float("inf"):
            raise ValueError(f"penalty must be 0 or more, not {penalty}")
        self.max_turns, self.format, self.penalty = max_turns, format, penalty
        self.system_prompt = text.system_prompt(format)
        self.observation_space = Text(max_length=256, charset=printable)
        self.action_space = Text(max_length=16384, charset=printable)
        self._hand: Hand | None = None
        self._split = "train"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; without a seed one is drawn from the gymnasium generator."""
        self._split, seed = split_and_seed(self, seed, options)
        self._hand = deal(self._split, seed)
        self._formula: list[str] = []
        self._turn, self._ended = 0, False
        return self._observation(), self._info(Parsed("", True), valid=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Write the token of a response; what is not possible costs the turn and the penalty, if any."""
        parsed = parse_action(action, self.format)
        valid = parsed.command in self._possible()
        self._turn += 1
        self._ended = valid and parsed.command == EQUALS
        if valid and not self._ended:
            self._formula.append(parsed.command)
        info = self._info(parsed, valid)
        wrong = not valid or (self._ended and not info["success"])
        reward = WIN_REWARD if info["success"] else -self.penalty if wrong else 0.0
        truncated = not self._ended and self._turn >= self.max_turns
        return self._observation(), reward, self._ended, truncated, info

    def render(self) -> np.ndarray:
        """Cards and formula as an image: uint8 [300, 300, 3], red, green and blue."""
        return paint(self.hand, [*self._formula, *([EQUALS] if self._ended else [])])

    @property
    def hand(self) -> Hand:
        """The two cards. Raises ValueError before the first reset."""
        if self._hand is None:
            raise ValueError("call reset before using the cards")
        return self._hand

    def expert_command(self) -> str | None:
        """The next action of a way to twelve that begins like the formula; None if there is none."""
        written = len(self._formula)
        for way in self._solutions():
            if not self._ended and way[:written] == self._formula:
                return way[written]
        return None

    def respond(self, command: str) -> str:
        """A well-formed response with this action."""
        way = text.show(self._solutions()[0][:-1])
        return format_action(command, f"{way} makes {TARGET}.", self.format)

    def oracle_skill(self) -> str:
        """The actions that make twelve of the present hand."""
        return text.write_actions(self._solutions()[0])

    def skill_is_right(self, skill: str) -> bool:
        """Whether the actions that `skill` names, in their order, make twelve of the present hand."""
        return _NAMED.findall(skill) in self._solutions()

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A small tokenizer made from expert play, for a model that knows nothing but this game."""
        from sprout.seed.envs.lessons import play_tokenizer

        return play_tokenizer(self)

    def lesson(self, chat: ChatFormat, layout: RolloutSection, **sizes: int) -> list[Turn]:
        """Turns that teach a model to play and to analyze; see `sprout.seed.envs.lessons`."""
        from sprout.seed.envs.lessons import lesson

        return lesson(self, chat, layout, **sizes)

    def _solutions(self) -> list[list[str]]:
        return solutions((self.hand[0].number, self.hand[1].number))

    def _possible(self) -> list[str]:
        left = unused([card.number for card in self.hand], self._formula)
        return [action for action in ACTIONS if action not in NUMBERS or action in left]

    def _observation(self) -> str:
        shown = text.observation(self.hand, self._formula)
        return f"{shown}\n{text.verdict(self._formula)}" if self._ended else shown

    def _info(self, parsed: Parsed, valid: bool) -> dict[str, Any]:
        operator = self._solutions()[0][1]
        return {
            "task": text.TASK,
            "family": "add" if operator == OPERATORS[0] else "multiply",
            "split": self._split,
            "valid": valid,
            "well_formed": parsed.well_formed,
            "command": parsed.command,
            "admissible_commands": self._possible(),
            "success": self._ended and value(self._formula) == TARGET,
        }
