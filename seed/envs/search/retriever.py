"""Who finds passages: an index of this machine, or a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sprout.seed.envs.search.passages import Passage


class Retriever(Protocol):
    """Finds passages for queries."""

    def retrieve(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """At most `topk` passages for every query, best first."""
