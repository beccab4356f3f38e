"""A scripted player that knows the answer: for demonstrations and lessons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sprout.seed.envs.search.exact_match import mentions
from sprout.seed.envs.search.response import format_response

if TYPE_CHECKING:
    from sprout.seed.envs.search.env import SearchEnv


@dataclass(frozen=True)
class Demonstration:
    """One turn of a scripted episode."""

    observation: str
    response: str


def demonstrate(env: SearchEnv, split: str, seed: int) -> Iterator[tuple[Demonstration, dict[str, Any]]]:
    """Plays the question of (split, seed): every turn, with the info it led to.

    It searches the question, then, if no passage holds the answer, the question together with the answer, as
    long as turns are left; then it answers.
    """
    observation, info = env.reset(seed=seed, options={"split": split})
    question, golden = info["task"], info["golden_answers"]
    queries = iter([question, f"{question} {golden[0]}"])
    ended, found = False, ""
    while not ended:
        query = next(queries, None) if not found and env.turns_left > 1 else None
        response = _search(query) if query else _answer(found, golden[0])
        turn = Demonstration(observation, response)
        observation, _, terminated, truncated, info = env.step(response)
        ended = terminated or truncated
        found = next((answer for answer in golden if mentions(observation, [answer])), "")
        yield turn, info


def _search(query: str) -> str:
    return format_response("search", query, "I have to look this up.")


def _answer(found: str, known: str) -> str:
    thought = "The passages say it." if found else "The passages do not say it, but I know it."
    return format_response("answer", found or known, thought)
