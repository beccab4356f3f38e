"""The household world as a `gymnasium.Env` with text observations and text actions."""

from __future__ import annotations

from string import ascii_lowercase, digits
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
from gymnasium.spaces import Text

from sprout.seed.envs.household import skills, text
from sprout.seed.envs.household.analyzer import analyze
from sprout.seed.envs.household.world import OBJECTS, RECEPTACLES, World, generate_world
from sprout.seed.envs.seeding import split_and_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sprout.engine.chat import ChatFormat
    from sprout.engine.forest import Turn
    from sprout.seed.schema import RolloutSection

MAX_TURNS = 12
_CHARSET = ascii_lowercase + digits + " .,"


class HouseholdEnv(gymnasium.Env[str, str]):
    """One episode is one room and one task; reward 1 and termination when the task is done.

    `reset(seed=..., options={"split": "train" | "select" | "report"})` fixes the episode completely. `info`
    holds `task`, `family`, `split`, `valid` (the last command was executable) and `success`. A model that was
    not raised on this world needs `commands_listed`: its system prompt names the commands.
    """

    max_turns: int = MAX_TURNS
    analyzer_instructions: ClassVar[dict[str, str]] = text.ANALYZER_INSTRUCTIONS
    static_skills: ClassVar[dict[str, str]] = skills.STATIC_SKILLS
    scripted_analyzer = staticmethod(analyze)

    def __init__(
        self,
        max_turns: int = MAX_TURNS,
        receptacles: tuple[int, int] = RECEPTACLES,
        objects: tuple[int, int] = OBJECTS,
        commands_listed: bool = False,
    ) -> None:
        if max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, not {max_turns}")
        for name, (low, high), (least, most) in (
            ("receptacles", receptacles, (8, 14)),
            ("objects", objects, (6, 12)),
        ):
            if not least <= low <= high <= most:
                raise ValueError(f"{name} must be a range within {least} to {most}, not {low} to {high}")
        self.max_turns = max_turns
        self.system_prompt = text.SYSTEM_PROMPT + (f" {text.COMMANDS}" if commands_listed else "")
        self.receptacles, self.objects = tuple(receptacles), tuple(objects)
        self.observation_space = Text(max_length=1024, charset=_CHARSET)
        self.action_space = Text(max_length=256, charset=_CHARSET)
        self.world: World | None = None
        self._split = "train"
        self._turn = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the episode of (split, seed); without a seed one is drawn from the gymnasium generator."""
        self._split, seed = split_and_seed(self, seed, options)
        self.world = generate_world(self._split, seed, self.receptacles, self.objects)
        self._turn = 0
        return self.world.first_observation, self._info(valid=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Execute one command; anything that is not executable costs the turn and nothing else."""
        world = self._room()
        outcome = world.execute(action)
        self._turn += 1
        success = world.success
        truncated = not success and self._turn >= self.max_turns
        return outcome.observation, float(success), success, truncated, self._info(outcome.valid)

    def oracle_skill(self) -> str:
        """The skill of someone who has seen this episode's whole room."""
        return skills.oracle_skill(self._room())

    def skill_is_right(self, skill: str) -> bool:
        """Whether all that `skill` claims holds of this episode's room at its start and of its task."""
        return skills.skill_is_right(skill, self._room())

    @staticmethod
    def tokenizer() -> PreTrainedTokenizerFast:
        """The tokenizer of a model that knows nothing but this world."""
        from sprout.seed.envs.household.vocabulary import household_tokenizer

        return household_tokenizer()

    def lesson(self, chat: ChatFormat, layout: RolloutSection, **sizes: int) -> list[Turn]:
        """Turns that teach a model to act here; see `sprout.seed.envs.household.lessons.lesson`."""
        from sprout.seed.envs.household.lessons import lesson

        return lesson(chat, layout, system=self.system_prompt, **sizes)

    def _room(self) -> World:
        if self.world is None:
            raise ValueError("call reset before using the room")
        return self.world

    def _info(self, valid: bool) -> dict[str, Any]:
        world = self._room()
        task = world.task
        return {
            "task": task.text,
            "family": task.family,
            "split": self._split,
            "valid": valid,
            "success": world.success,
        }
