"""The search environment's rule-based hindsight analyzer: trajectory in, skill out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sprout.seed.analyzer.transcript import TrajectoryView
from sprout.seed.envs.search.exact_match import mentions
from sprout.seed.envs.search.response import parse_response

_DOC = re.compile(r'Doc \d+\(Title: "(.*?)"\) (.*?)(?=\nDoc \d+\(Title: "|</information>)', re.DOTALL)


@dataclass(frozen=True)
class _Search:
    """A query and the passages, as (title, text), that it brought."""

    query: str
    passages: tuple[tuple[str, str], ...]


def analyze(trajectory: TrajectoryView) -> dict[str, str]:
    """`{"episode_summary": ..., "episode_skill": ...}` from nothing but what the trajectory shows."""
    searches, answer = _read(trajectory)
    summary, skill = (_success if trajectory.success else _failure)(searches, answer)
    if any(not step.valid for step in trajectory.steps):
        skill += " End every turn with exactly one search or one answer."
    return {"episode_summary": summary, "episode_skill": skill}


def _read(trajectory: TrajectoryView) -> tuple[list[_Search], str]:
    """The searches in order, and the answer (empty if none was given)."""
    after = [step.observation for step in trajectory.steps[1:]] + [trajectory.final_observation or ""]
    searches, answer = [], ""
    for step, observation in zip(trajectory.steps, after, strict=True):
        action = parse_response(step.response)
        if action.kind == "search":
            searches.append(_Search(action.text, tuple(_DOC.findall(observation))))
        elif action.kind == "answer":
            answer = action.text
    return searches, answer


def _success(searches: list[_Search], answer: str) -> tuple[str, str]:
    if not searches:
        return "Answered rightly without a search.", "Answer from what you know; no search is needed."
    for search in searches:
        for title, content in search.passages:
            if mentions(f"{title} {content}", [answer]):
                return (
                    f'The query "{search.query}" brought the answer in the passage "{title}".',
                    f'Search "{search.query}": the passage "{title}" settles the question. Then answer '
                    "at once, with the name or number alone.",
                )
    return (
        f"Answered rightly after {_queries(searches)}; no passage says it in these words.",
        f"Search {_queries(searches)} and put the answer together from the passages, in few words.",
    )


def _failure(searches: list[_Search], answer: str) -> tuple[str, str]:
    tried = f"{_queries(searches)} did not lead to it" if searches else "nothing was searched"
    if not answer:
        return (
            f"No answer was given; {tried}.",
            "Keep the last turn for an answer. "
            + (
                f"Do not repeat {_queries(searches)}; search for something else first."
                if searches
                else "Search first."
            ),
        )
    wrong = f'The answer "{answer}" was wrong; {tried}.'
    if not searches:
        return wrong, f'Search before you answer: "{answer}" from memory was wrong.'
    if any(mentions(f"{title} {content}", [answer]) for s in searches for title, content in s.passages):
        return wrong, (
            f'"{answer}" stands in the passages but is not what is asked for. Read the question again, '
            f"compare the other passages of {_queries(searches)}, and answer in few words."
        )
    return wrong, (
        f'{_queries(searches)} did not settle the question, and "{answer}" is wrong. Use other words: the '
        "names in the question alone, one step at a time."
    )


def _queries(searches: list[_Search]) -> str:
    return " and ".join(f'"{query}"' for query in dict.fromkeys(search.query for search in searches))
