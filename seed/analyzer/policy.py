"""The policy as its own analyzer: greedy, one attempt per trajectory."""

from __future__ import annotations

from collections.abc import Mapping

from sprout.engine.chat import ChatFormat
from sprout.engine.generate import complete
from sprout.engine.generator import Completion, Generator
from sprout.engine.rng import derive_key
from sprout.seed.analyzer.prompt import parse_answer, prompt_ids
from sprout.seed.trajectory import Skill, Trajectory

OVERFLOW = "prompt does not fit"


class PolicyAnalyzer:
    """Writes skills with the generator's present weights.

    A prompt that leaves no room for `max_new_tokens` within `max_context_tokens` is never cut: that skill is
    invalid with the problem OVERFLOW. An answer that was cut, does not parse, or holds text that cannot be
    encoded again is invalid as well, and keeps the raw answer.
    """

    name = "policy"

    def __init__(
        self,
        generator: Generator,
        chat: ChatFormat,
        instructions: Mapping[str, str],
        *,
        max_new_tokens: int,
        max_context_tokens: int,
        terminal_observation: bool = True,
    ) -> None:
        self._generator = generator
        self._chat = chat
        self._instructions = instructions
        self._max_new_tokens = max_new_tokens
        self._max_context_tokens = max_context_tokens
        self._terminal_observation = terminal_observation

    def analyze(self, trajectories: list[Trajectory]) -> list[Skill]:
        """One skill per trajectory; all answers are generated together."""
        prompts = [self._prompt(trajectory) for trajectory in trajectories]
        asked = [index for index, prompt in enumerate(prompts) if not isinstance(prompt, str)]
        answers = complete(
            self._generator,
            [prompts[index] for index in asked],
            max_new_tokens=self._max_new_tokens,
            keys=[derive_key("analyzer", trajectories[index].id) for index in asked],
            temperature=0.0,
        )
        skills = [self._invalid(str(prompt)) for prompt in prompts]
        for index, answer in zip(asked, answers, strict=True):
            skills[index] = self._skill(answer)
        return skills

    def _prompt(self, trajectory: Trajectory) -> list[int] | str:
        """The prompt's ids, or the problem that rules it out."""
        try:
            ids = prompt_ids(trajectory, self._chat, self._instructions, self._terminal_observation)
        except ValueError as error:
            return f"prompt cannot be encoded: {error}"
        return ids if len(ids) + self._max_new_tokens <= self._max_context_tokens else OVERFLOW

    def _skill(self, answer: Completion) -> Skill:
        raw = self._chat.decode(answer.ids.tolist())
        if answer.finished != "stop":
            return self._invalid("answer was cut by length", raw)
        try:
            summary, text = parse_answer(raw)
            tokens = len(self._chat.encode(text))
        except ValueError as error:
            return self._invalid(str(error), raw)
        return Skill(text=text, summary=summary, analyzer=self.name, raw=raw, tokens=tokens)

    def _invalid(self, problem: str, raw: str = "") -> Skill:
        return Skill(valid=False, analyzer=self.name, raw=raw, problem=problem)
