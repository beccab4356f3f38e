"""Questions and a search engine as a `gymnasium.Env` with text observations and text responses."""

from __future__ import annotations

from string import printable
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
from gymnasium.spaces import Text

from sprout.seed.envs.search import text
from sprout.seed.envs.search.analyzer import analyze
from sprout.seed.envs.search.data import Given, find_questions, find_retriever
from sprout.seed.envs.search.exact_match import matches
from sprout.seed.envs.search.questions import Question, choose_question
from sprout.seed.envs.search.response import INVALID, STOP_STRINGS, Action, parse_response
from sprout.seed.envs.seeding import split_and_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from sprout.engine.chat import ChatFormat
    from sprout.engine.forest import Turn
    from sprout.seed.schema import RolloutSection

MAX_TURNS, TOPK = 4, 3


class SearchEnv(gymnasium.Env[str, str]):
    """One episode is one question: `<search>` brings passages, `<answer>` ends it; reward on exact match.

    data       folder with index/, train/ and test/ in it; None: `$SEARCH_DATA`
    index      folder that `sprout search-index` made; corpus: the file it must have been built from
    server     address of a retrieval server, in place of an index (`timeout_s` a request, `retries` more)
    questions  files or folders by split (train, select, report, or test for both panels); one file or a list
               is divided: of ten questions seven train, one for select, two for report
    topk       passages a search brings

    `reset(seed=..., options={"split": ...})` asks the seed-th question of a fixed order, modulo their number.
    `info` holds `task`, `family` (the question's set), `split`, `question_id`, `golden_answers`, `valid` and
    `well_formed` (exactly one search or answer), `kind`, `command` (the query or the answer), `retrieved`
    (ids of the passages just found) and `success`.
    """

    stop_strings: ClassVar[tuple[str, ...]] = STOP_STRINGS
    system_prompt: ClassVar[str] = text.SYSTEM_PROMPT
    analyzer_instructions: ClassVar[dict[str, str]] = text.ANALYZER_INSTRUCTIONS
    scripted_analyzer = staticmethod(analyze)

    def __init__(
        self,
        max_turns: int = MAX_TURNS,
        data: str | None = None,
        index: str | None = None,
        server: str | None = None,
        corpus: str | None = None,
        questions: Given | None = None,
        topk: int = TOPK,
        success_reward: float = 1.0,
        timeout_s: float = 30.0,
        retries: int = 3,
    ) -> None:
        for name, value in (("max_turns", max_turns), ("topk", topk)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.max_turns, self.topk, self.success_reward = max_turns, topk, success_reward
        self.sources = find_questions(questions, data)
        self.retriever = find_retriever(index, server, corpus, data, timeout_s, retries)
        self.observation_space = Text(max_length=65536, charset=printable)
        self.action_space = Text(max_length=16384, charset=printable)
        self.question: Question | None = None
        self._split = "train"
        self._turn = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ask a question; without a seed one is drawn from the gymnasium generator."""
        self._split, seed = split_and_seed(self, seed, options)
        self.question = choose_question(self.sources, self._split, seed)
        self._turn = 0
        return text.turns_left(self.max_turns), self._info(INVALID, valid=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Search or answer; what is neither costs the turn and nothing else.

        Raises ConnectionError if the retrieval server fails.
        """
        question = self._asked()
        found = parse_response(action)
        success = found.kind == "answer" and matches(found.text, question.golden_answers)
        observation, retrieved = self._outcome(found, success)
        self._turn += 1
        terminated = found.kind == "answer"
        truncated = not terminated and self._turn >= self.max_turns
        if not terminated:
            observation = f"{observation}\n{text.turns_left(self.turns_left)}".rstrip()
        info = self._info(found, valid=found.kind is not None, retrieved=retrieved, success=success)
        return observation, self.success_reward if success else 0.0, terminated, truncated, info

    @property
    def turns_left(self) -> int:
        """How many more responses the episode takes."""
        return self.max_turns - self._turn

    def oracle_skill(self) -> str:
        """The answer itself."""
        return f"The answer is {self._asked().golden_answers[0]}: give it at once."

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A small tokenizer made from passages and questions, for a model that knows nothing else."""
        from sprout.seed.envs.search.vocabulary import build_tokenizer

        return build_tokenizer(self)

    def lesson(self, chat: ChatFormat, layout: RolloutSection, **sizes: int) -> list[Turn]:
        """Turns that teach a model to search and to analyze; see `sprout.seed.envs.search.lessons`."""
        from sprout.seed.envs.search.lessons import lesson

        return lesson(self, chat, layout, **sizes)

    def _outcome(self, found: Action, success: bool) -> tuple[str, list[str]]:
        """What the policy reads next, and the ids of the passages in it."""
        if found.kind is None:
            return text.INVALID, []
        if found.kind == "answer":
            return text.RIGHT if success else text.WRONG, []
        (passages,) = self.retriever.retrieve([found.text], self.topk)
        return text.information(passages), [passage.id for passage in passages]

    def _asked(self) -> Question:
        if self.question is None:
            raise ValueError("call reset before step")
        return self.question

    def _info(
        self, found: Action, valid: bool, retrieved: list[str] | None = None, success: bool = False
    ) -> dict[str, Any]:
        question = self._asked()
        return {
            "task": question.text,
            "family": question.dataset,
            "split": self._split,
            "question_id": question.id,
            "golden_answers": list(question.golden_answers),
            "valid": valid,
            "well_formed": valid,
            "kind": found.kind,
            "command": found.text,
            "retrieved": retrieved or [],
            "success": success,
        }
