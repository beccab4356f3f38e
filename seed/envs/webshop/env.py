"""WebShop as a `gymnasium.Env` with text observations and text responses."""

from __future__ import annotations

from string import printable
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
from gymnasium.spaces import Text

from sprout.seed.envs.response import FORMATS, Format, Parsed, parse_response
from sprout.seed.envs.seeding import split_and_seed
from sprout.seed.envs.webshop import text
from sprout.seed.envs.webshop.analyzer import analyze
from sprout.seed.envs.webshop.catalogue import load_catalogue
from sprout.seed.envs.webshop.generated import PRODUCTS
from sprout.seed.envs.webshop.goals import KINDS, SHARES, Goals, Kind
from sprout.seed.envs.webshop.skills import oracle_skill, skill_is_right
from sprout.seed.envs.webshop.visit import Visit

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sprout.engine.chat import ChatFormat
    from sprout.engine.forest import Turn
    from sprout.seed.schema import RolloutSection

MAX_TURNS = 15


class WebshopEnv(gymnasium.Env[str, str]):
    """One episode is one visit to the shop of WebShop (arXiv 2207.01206): the reward comes with the purchase.

    data              file of real products (see `sprout.seed.envs.webshop.reading`); None: a generated shop
    products, catalogue_seed   how many products are generated, from which seed
    goals             synthetic: every combination of options of a product that has an instruction; human:
                      those that people wrote, where the file has them
    format            how responses must look: see `sprout.seed.envs.response`
    show_instruction  whether every page repeats the instruction, as the original's do
    list_commands     whether observations end in a list of what is possible now

    `reset(seed=..., options={"split": "train" | "select" | "report"})` takes the seed-th goal of the split in
    a fixed shuffled order, modulo their number; splits are disjoint by product. Success is a reward of 1.0.
    `info` holds `task`, `family` (the product's category), `split`, `product` (the one that the goal was made
    from), `valid` (the command was possible), `well_formed` (the response kept the format), `command`,
    `admissible_commands` (among them one search for many), `score` (the reward so far) and `success`.
    """

    analyzer_instructions: ClassVar[dict[str, str]] = text.ANALYZER_INSTRUCTIONS
    scripted_analyzer = staticmethod(analyze)
    formats: ClassVar[tuple[Format, ...]] = FORMATS

    def __init__(
        self,
        max_turns: int = MAX_TURNS,
        data: str | None = None,
        products: int = PRODUCTS,
        catalogue_seed: int = 0,
        goals: Kind = "synthetic",
        format: Format = "think",
        show_instruction: bool = True,
        list_commands: bool = False,
    ) -> None:
        for name, number in (("max_turns", max_turns), ("products", products)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, not {number}")
        for name, value, known in (("format", format, FORMATS), ("goals", goals, KINDS)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        self.max_turns, self.format = max_turns, format
        self.show_instruction, self.list_commands = show_instruction, list_commands
        self.catalogue = load_catalogue(data, products, catalogue_seed)
        self.system_prompt = text.system_prompt(format)
        self.observation_space = Text(max_length=65536, charset=printable)
        self.action_space = Text(max_length=16384, charset=printable)
        self._source = data or "the generated catalogue"
        self._goals: Kind = goals
        self._visit: Visit | None = None
        self._split = "train"
        self._turn = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; without a seed one is drawn from the gymnasium generator."""
        self._split, seed = split_and_seed(self, seed, options)
        self._visit = Visit(self.catalogue, self.goals(self._split).of(seed))
        self._turn = 0
        return self._observation(), self._info(Parsed("", True), valid=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out the command in a response; what is not possible costs the turn and nothing else."""
        parsed = parse_response(action, self.format)
        valid = self.visit.execute(parsed.command)
        self._turn += 1
        bought = self.visit.score
        truncated = bought is None and self._turn >= self.max_turns
        info = self._info(parsed, valid)
        return self._observation(), info["score"], bought is not None, truncated, info

    def goals(self, split: str) -> Goals:
        """The goals of a split. Raises ValueError for an unknown split and for one without goals."""
        if split not in SHARES:
            raise ValueError(f"unknown split {split!r}; use one of {', '.join(SHARES)}")
        goals = self.catalogue.goals(split, self._goals)
        if not len(goals):
            raise ValueError(
                f"no product of {self._source} that falls into the split {split!r} has {self._goals} "
                "instructions; give env.options more products or other goals"
            )
        return goals

    @property
    def visit(self) -> Visit:
        """The present state. Raises ValueError before the first reset."""
        if self._visit is None:
            raise ValueError("call reset before using the shop")
        return self._visit

    def oracle_skill(self) -> str:
        """The way to buy what the present goal was made from."""
        return oracle_skill(self.visit)

    def skill_is_right(self, skill: str) -> bool:
        """Whether following the actions that `skill` names, in their order, earns the full reward."""
        return skill_is_right(skill, self.visit)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A small tokenizer made from expert play, for a model that knows nothing but this shop."""
        from sprout.seed.envs.webshop.vocabulary import build_tokenizer

        return build_tokenizer(self)

    def lesson(self, chat: ChatFormat, layout: RolloutSection, **sizes: int) -> list[Turn]:
        """Turns that teach a model to shop and to analyze; see `sprout.seed.envs.webshop.lessons`."""
        from sprout.seed.envs.webshop.lessons import lesson

        return lesson(self, chat, layout, **sizes)

    def _observation(self) -> str:
        is_over = self.visit.score is not None
        page = self.visit.page.text(
            self.visit.goal.instruction if self.show_instruction and not is_over else None
        )
        if not self.list_commands or is_over:
            return page
        return text.with_commands(page, self.visit.commands())

    def _info(self, parsed: Parsed, valid: bool) -> dict[str, Any]:
        visit = self.visit
        reward = visit.score.value if visit.score else 0.0
        return {
            "task": visit.goal.instruction,
            "family": visit.goal.product.category,
            "split": self._split,
            "product": visit.goal.product.id,
            "valid": valid,
            "well_formed": parsed.well_formed,
            "command": parsed.command,
            "admissible_commands": visit.commands(),
            "score": reward,
            "success": reward == 1.0,
        }
