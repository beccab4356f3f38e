"""Retrieval by a server, for dense retrieval: the interface of Search-R1's retrieval server.

POST /retrieve {"queries": [...], "topk": 3, "return_scores": true}
-> {"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from sprout.seed.envs.search.http import post_json
from sprout.seed.envs.search.passages import Passage


class RetrievalServer:
    """Asks a server. Raises ConnectionError, in one line, when it stays unreachable or talks otherwise."""

    def __init__(
        self, url: str, *, timeout_s: float = 30.0, retries: int = 3, first_wait_s: float = 1.0
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"env.options.server: {url!r} is no address such as http://localhost:8000/retrieve"
            )
        if timeout_s <= 0 or retries < 0:
            raise ValueError(f"timeout_s must be above 0 and retries at least 0, not {timeout_s}, {retries}")
        self.url = url if parts.path.strip("/") else f"{url.rstrip('/')}/retrieve"
        self._timeout_s, self._retries, self._first_wait_s = timeout_s, retries, first_wait_s

    def retrieve(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """What the server finds, at most `topk` passages for every query."""
        if not queries:
            return []
        return post_json(
            self.url,
            {"queries": list(queries), "topk": topk, "return_scores": True},
            name="retrieval server",
            timeout_s=self._timeout_s,
            retries=self._retries,
            read=lambda answer: _passages(answer, len(queries), topk),
            first_wait_s=self._first_wait_s,
        )


def _passages(answer: Any, queries: int, topk: int) -> list[list[Passage]]:
    rows = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError("its answer is no {result: [[...], ...]}")
    if len(rows) != queries:
        raise ValueError(f"it gives {len(rows)} results for {queries} queries")
    return [[_passage(item) for item in row[:topk]] for row in rows]


def _passage(item: Any) -> Passage:
    score = item.get("score") if isinstance(item, dict) else None
    if not isinstance(score, int | float) or "document" not in item:
        raise ValueError("a result is no {document: {id, contents}, score}")
    return Passage.of(item["document"], float(score))
