"""An external analyzer behind any OpenAI-compatible server: vLLM, SGLang, llama.cpp, or a hosted model."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sprout.engine.chat import ChatFormat
from sprout.seed.analyzer.answers import Answer, Answers
from sprout.seed.analyzer.prompt import parse_answer, prompt_texts
from sprout.seed.trajectory import Skill, Trajectory

LONGEST_WAIT_S = 30.0
SHORTEST_KEY = 8  # a shorter one is no secret, and its letters are in every text
SHOWN = 200  # characters of a server's answer in an error


@dataclass(frozen=True)
class Server:
    """Where and how to ask. Prices are per million tokens; the key comes from the variable `key_variable`."""

    base_url: str
    model: str
    concurrency: int = 8
    retries: int = 3
    timeout_s: float = 300.0
    prompt_price: float = 0.0
    completion_price: float = 0.0
    key_variable: str = "OPENAI_API_KEY"
    first_wait_s: float = 1.0


class OpenAIAnalyzer:
    """Asks `server` greedily for one skill per trajectory; answers are kept in the file `answers`.

    An answer that does not parse gives an invalid skill. A server that stays unreachable, refuses or sends
    something that is no completion raises ConnectionError: an outage says nothing about a skill. Every
    failure but a refusal is retried with doubling waits. Raises ImportError without the extra `openai`.
    """

    name = "openai"

    def __init__(
        self,
        server: Server,
        chat: ChatFormat,
        instructions: Mapping[str, str],
        *,
        max_new_tokens: int,
        terminal_observation: bool = True,
        answers: Path | None = None,
    ) -> None:
        self._server, self._chat, self._instructions = server, chat, instructions
        self._max_new_tokens = max_new_tokens
        self._terminal_observation = terminal_observation
        self._answers = Answers(answers)
        self._openai = _openai()
        key = _key(server.key_variable)
        self._secret = key if len(key) >= SHORTEST_KEY else None
        # A server of one's own needs no key; the client insists on one. Retries are ours: the client's leave
        # out bodies that are cut or no JSON.
        self._client = self._openai.OpenAI(
            base_url=server.base_url,
            api_key=key or "none",
            timeout=server.timeout_s,
            max_retries=0,
        )
        self._lock = threading.Lock()
        self._usage: dict[str, float] = {}

    def analyze(self, trajectories: list[Trajectory]) -> list[Skill]:
        """One skill per trajectory, in order."""
        with ThreadPoolExecutor(self._server.concurrency) as pool:
            try:
                return list(pool.map(self._skill, trajectories))
            finally:
                pool.shutdown(cancel_futures=True)

    def take_usage(self) -> dict[str, float]:
        """requests, retries, prompt_tokens, completion_tokens and cost since the last call; kept answers cost
        nothing."""
        with self._lock:
            usage, self._usage = self._usage, {}
        names = ("requests", "retries", "prompt_tokens", "completion_tokens", "cost")
        return {name: usage.get(name, 0.0) for name in names}

    def _skill(self, trajectory: Trajectory) -> Skill:
        texts = prompt_texts(trajectory, self._instructions, self._terminal_observation)
        request = {
            "model": self._server.model,
            "messages": [dict(role=r, content=t) for r, t in zip(("system", "user"), texts, strict=True)],
            "temperature": 0,
            "max_tokens": self._max_new_tokens,
        }
        answer = self._answers.get(request)
        if answer is None:
            answer = self._ask(request)
            self._answers.add(request, answer)
        try:
            if answer.finish_reason == "length":
                raise ValueError("answer was cut by length")
            summary, text = parse_answer(answer.text, repair=_repair)
            tokens = len(self._chat.encode(text))
        except ValueError as error:
            return Skill(valid=False, analyzer=self.name, raw=answer.text, problem=str(error))
        return Skill(text=text, summary=summary, analyzer=self.name, raw=answer.text, tokens=tokens)

    def _ask(self, request: dict[str, Any]) -> Answer:
        """A completion, after at most `retries` further attempts."""
        wait = self._server.first_wait_s
        for attempt in range(self._server.retries + 1):
            try:
                return self._counted(self._completion(request))
            except self._openai.APIStatusError as error:
                problem = f"{error.status_code}: {self._kept(error.response.text)[:SHOWN]}"
                if error.status_code < 500 and error.status_code not in (408, 409, 429):
                    break
            except (self._openai.APIError, ValueError, LookupError, TypeError) as error:
                problem = f"{type(error).__name__}: {self._kept(str(error))[:SHOWN]}"
            if attempt < self._server.retries:
                self._count(retries=1)
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_S)
        raise ConnectionError(f"analyzer server {self._server.base_url}: {' '.join(problem.split())}")

    def _completion(self, request: dict[str, Any]) -> Answer:
        raw = self._client.chat.completions.with_raw_response.create(**request)
        body = raw.content if hasattr(raw, "content") else raw.http_response.content
        try:
            found = json.loads(body)
        except ValueError:
            start = self._kept(body.decode(errors="replace"))[:SHOWN]
            raise ValueError(f"the answer is no JSON: {start}") from None
        if not isinstance(found, dict) or not found.get("choices"):
            raise LookupError("the answer has no choices")
        choice, usage = found["choices"][0], found.get("usage") or {}
        return Answer(
            self._kept(choice["message"].get("content") or ""),
            choice.get("finish_reason") or "stop",
            int(usage.get("prompt_tokens") or 0),
            int(usage.get("completion_tokens") or 0),
        )

    def _kept(self, text: str) -> str:
        """A server's text as it may be stored and shown: some send back the key that they got."""
        return text.replace(self._secret, "[key]") if self._secret else text

    def _counted(self, answer: Answer) -> Answer:
        server = self._server
        cost = answer.prompt_tokens * server.prompt_price + answer.completion_tokens * server.completion_price
        self._count(
            requests=1,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            cost=cost / 1e6,
        )
        return answer

    def _count(self, **amounts: float) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._usage[name] = self._usage.get(name, 0.0) + amount


def usage(analyzer: object) -> dict[str, float]:
    """What `analyzer` has asked a server for since the last call; empty for one that asks none."""
    take = getattr(analyzer, "take_usage", dict)
    return dict(take())


def _key(variable: str) -> str:
    """The key in a variable, empty without one. Raises ValueError for what no header can hold."""
    key = os.environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"{variable} holds blanks or signs that no key has: set it again")
    return key


def _openai() -> Any:
    try:
        import json_repair  # noqa: F401 (for answers that are broken: missing is said now, not at the first one)
        import openai
    except ImportError:
        raise ImportError("an OpenAI analyzer needs the client: pip install 'sprout-rl[openai]'") from None
    return openai


def _repair(text: str) -> Any:
    """The object that broken JSON probably meant."""
    import json_repair

    return json_repair.loads(text)
