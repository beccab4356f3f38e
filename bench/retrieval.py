"""Retrieval of the search environment: does it find the answers, and how fast?

    sprout bench search INDEX QUESTIONS

recall@k: share of questions with a golden answer, as whole words and normalized as for exact match, in one of
the k best passages for the question itself. `batched` asks in batches, `single` one by one, as an episode
does. Times are CPU seconds of this process: what a core gives, however busy the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sprout.seed.envs.search.exact_match import mentions
from sprout.seed.envs.search.passages import Passage
from sprout.seed.envs.search.questions import Question
from sprout.seed.envs.search.retriever import Retriever

SINGLE = 200


@dataclass(frozen=True)
class RetrievalResult:
    """Hits by set, seconds of every batch of `batch` queries (all rounds) and of single queries."""

    topk: int
    batch: int
    hits: dict[str, tuple[bool, ...]]
    batch_s: tuple[float, ...]
    queries: int
    single_s: tuple[float, ...]

    def rows(self) -> list[dict[str, str | float]]:
        recall = f"recall@{self.topk}"
        return [{"set": n, "questions": len(h), recall: float(np.mean(h))} for n, h in self.hits.items()]

    def summary(self) -> dict[str, float]:
        everything = np.concatenate([np.asarray(hits) for hits in self.hits.values()])
        return {
            f"recall@{self.topk}": float(everything.mean()),
            f"recall@{self.topk}_macro": float(np.mean([np.mean(hits) for hits in self.hits.values()])),
            "queries_per_s_batched": self.queries / sum(self.batch_s),
            "queries_per_s_single": len(self.single_s) / sum(self.single_s),
            "single_query_ms": 1e3 * float(np.median(self.single_s)),
        }


def measure_retrieval(
    retriever: Retriever, questions: Sequence[Question], topk: int, batch: int, rounds: int
) -> RetrievalResult:
    """Asks every question `rounds` times in batches and the first few one by one."""
    texts = [question.text for question in questions]
    retriever.retrieve(texts[:batch], topk)  # maps the pages, compiles what is compiled
    batch_s: list[float] = []
    found: list[list[Passage]] = []
    for _ in range(rounds):
        found = []
        for start in range(0, len(texts), batch):
            began = time.process_time()
            found += retriever.retrieve(texts[start : start + batch], topk)
            batch_s.append(time.process_time() - began)
    single_s = []
    for text in texts[:SINGLE]:
        began = time.process_time()
        retriever.retrieve([text], topk)
        single_s.append(time.process_time() - began)
    hits = _hits(questions, found)
    return RetrievalResult(topk, batch, hits, tuple(batch_s), rounds * len(texts), tuple(single_s))


def _hits(questions: Sequence[Question], found: Sequence[Sequence[Passage]]) -> dict[str, tuple[bool, ...]]:
    hits: dict[str, list[bool]] = {}
    for question, passages in zip(questions, found, strict=True):
        hit = any(mentions(passage.contents, question.golden_answers) for passage in passages)
        hits.setdefault(question.dataset, []).append(hit)
    return {name: tuple(values) for name, values in hits.items()}
