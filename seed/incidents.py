"""What goes wrong around environments without ending a run, counted by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

# retries: of an episode or a question about a task; dropped_groups, unanswered: what failed in these too;
# context_overflows: episodes cut short; worker_restarts, timeouts: of the processes that environments run in
INCIDENTS = ("retries", "dropped_groups", "unanswered", "context_overflows", "worker_restarts", "timeouts")
KEY = "incidents"  # of such counts in a stage's result


def counted(counts: Mapping[str, float]) -> dict[str, int]:
    """All incidents, those that did not happen too. Raises AssertionError for one without a name here."""
    assert not set(counts) - set(INCIDENTS), counts
    return {name: int(counts.get(name, 0)) for name in INCIDENTS}


def metrics(prefix: str, counts: Mapping[str, float]) -> dict[str, float]:
    """Counts as metrics `prefix`/NAME."""
    return {f"{prefix}/{name}": float(count) for name, count in counted(counts).items()}


def of_metrics(prefix: str, found: Mapping[str, float]) -> dict[str, int]:
    """The counts that `metrics` made these of."""
    return {name: int(found[f"{prefix}/{name}"]) for name in INCIDENTS}


def total(result: Any) -> dict[str, int]:
    """The sum of all counts anywhere in a stage's result."""
    return counted(_sum(result))


def describe(counts: Mapping[str, float]) -> str:
    """What happened, in words; empty when nothing did."""
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counted(counts).items() if count)


def _sum(result: Any) -> Counter[str]:
    found = Counter[str]()
    if isinstance(result, dict):
        for name, value in result.items():
            found.update(value if name == KEY else _sum(value))
    return found
