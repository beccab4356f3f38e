"""An external analyzer behind any OpenAI-compatible server: vLLM, SGLang, llama.cpp, or a hosted model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sprout.engine.chat import ChatFormat
from sprout.seed.analyzer.prompt import parse_answer, prompt_texts
from sprout.seed.http import post_json
from sprout.seed.trajectory import Skill, Trajectory

TIMEOUT_S = 300.0


class OpenAIAnalyzer:
    """Asks `base_url`/chat/completions, greedily, `concurrency` trajectories at a time.

    An answer that does not parse gives an invalid skill. A server that stays unreachable or refuses raises
    ConnectionError: an outage says nothing about a skill. The key is read from the variable OPENAI_API_KEY.
    """

    name = "openai"

    def __init__(
        self,
        base_url: str,
        model: str,
        chat: ChatFormat,
        instructions: Mapping[str, str],
        *,
        max_new_tokens: int,
        concurrency: int = 8,
        retries: int = 3,
        terminal_observation: bool = True,
        first_wait_s: float = 1.0,
    ) -> None:
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model = model
        self._chat = chat
        self._instructions = instructions
        self._max_new_tokens = max_new_tokens
        self._concurrency = concurrency
        self._retries = retries
        self._terminal_observation = terminal_observation
        self._first_wait_s = first_wait_s

    def analyze(self, trajectories: list[Trajectory]) -> list[Skill]:
        """One skill per trajectory, in order."""
        with ThreadPoolExecutor(self._concurrency) as pool:
            try:
                return list(pool.map(self._skill, trajectories))
            finally:
                pool.shutdown(cancel_futures=True)

    def _skill(self, trajectory: Trajectory) -> Skill:
        texts = prompt_texts(trajectory, self._instructions, self._terminal_observation)
        answer = self._ask([dict(role=r, content=t) for r, t in zip(("system", "user"), texts, strict=True)])
        raw = answer["message"].get("content") or ""
        try:
            if answer.get("finish_reason") == "length":
                raise ValueError("answer was cut by length")
            summary, text = parse_answer(raw)
            tokens = len(self._chat.encode(text))
        except ValueError as error:
            return Skill(valid=False, analyzer=self.name, raw=raw, problem=str(error))
        return Skill(text=text, summary=summary, analyzer=self.name, raw=raw, tokens=tokens)

    def _ask(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """The first choice of a completion."""
        body = {
            "model": self._model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self._max_new_tokens,
        }
        key = os.environ.get("OPENAI_API_KEY")
        return post_json(
            self._url,
            body,
            name="analyzer server",
            timeout_s=TIMEOUT_S,
            retries=self._retries,
            first_wait_s=self._first_wait_s,
            headers={"Authorization": f"Bearer {key}"} if key else None,
            read=_first_choice,
        )


def _first_choice(answer: Any) -> dict[str, Any]:
    choice: dict[str, Any] = answer["choices"][0]
    if "message" not in choice:
        raise LookupError("the server's answer has no choices[0].message")
    return choice
