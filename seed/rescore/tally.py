"""Statistics of fixed size: they can be added to forever, stored, and taken up again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LOWEST, HIGHEST, BINS = -6.0, 6.0, 1200
GATE_ACTIVE = 0.5  # a gate counts as active above it: the skill makes the token likelier
RELIABILITY_BINS = 10


class Tally:
    """Delta and gate of tokens, by label. Quantiles are exact to a bin of 0.01 within [-6, 6]."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)
        self.sums = np.zeros((len(self.labels), 5))
        self.histogram = np.zeros((len(self.labels), BINS))

    def add(self, label: np.ndarray, delta: np.ndarray, gate: np.ndarray) -> None:
        """label [n] indices into `labels`, delta and gate [n]."""
        active = gate > GATE_ACTIVE
        columns = np.stack([np.ones_like(delta), delta, delta**2, gate, active], axis=1)
        np.add.at(self.sums, label, columns)
        np.add.at(self.histogram, (label, _bins(delta)), 1)

    def record(self) -> dict[str, dict[str, float]]:
        """What is known of every label that has tokens."""
        return {name: self._of(i) for i, name in enumerate(self.labels) if self.sums[i, 0]}

    def state(self) -> dict[str, Any]:
        """JSON values that `restore` reads."""
        return {"sums": self.sums.tolist(), "histogram": _sparse(self.histogram)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` wrote."""
        self.sums[:] = state["sums"]
        self.histogram[:] = _dense(state["histogram"], self.histogram.shape)

    def _of(self, i: int) -> dict[str, float]:
        count, total, squares, gates, active = (float(value) for value in self.sums[i])
        mean = total / count
        return {
            "tokens": count,
            "delta_mean": mean,
            "delta_std": max(squares / count - mean**2, 0.0) ** 0.5,
            **{f"delta_p{p:02}": _quantile(self.histogram[i], p / 100) for p in (5, 50, 95)},
            "gate_mean": gates / count,
            "gate_active_ratio": active / count,
        }


class Calibration:
    """Does a mean Delta tell success from failure? Counts of failures and successes by mean Delta."""

    def __init__(self) -> None:
        self.counts = np.zeros((2, BINS))

    def add(self, delta: float, success: bool) -> None:
        """One trajectory or turn."""
        self.counts[int(success), _bins(np.array([delta]))[0]] += 1

    def record(self) -> dict[str, Any]:
        """AUC (0.5: Delta says nothing; None: one outcome only), and success by tenths of Delta."""
        failures, successes = self.counts
        both = failures.sum() * successes.sum()
        below = np.concatenate([[0.0], np.cumsum(failures)[:-1]])
        auc = float((successes * (below + failures / 2)).sum() / both) if both else None
        return {"count": int(self.counts.sum()), "auc": auc, "reliability": self._reliability()}

    def state(self) -> Any:
        """JSON values that `restore` reads."""
        return _sparse(self.counts)

    def restore(self, state: Any) -> None:
        """Go on from what `state` wrote."""
        self.counts[:] = _dense(state, self.counts.shape)

    def _reliability(self) -> list[dict[str, float]]:
        everything = self.counts.sum(0)
        middle = LOWEST + (np.arange(BINS) + 0.5) * (HIGHEST - LOWEST) / BINS
        before = np.cumsum(everything) - everything
        tenth = np.minimum(before * RELIABILITY_BINS // max(everything.sum(), 1), RELIABILITY_BINS - 1)
        rows = []
        for part in range(RELIABILITY_BINS):
            inside = tenth == part
            count = everything[inside].sum()
            if count:
                rows.append(
                    {
                        "delta_mean": float((everything * middle)[inside].sum() / count),
                        "success_rate": float(self.counts[1][inside].sum() / count),
                        "count": int(count),
                    }
                )
        return rows


def _bins(delta: np.ndarray) -> np.ndarray:
    place = np.floor((delta - LOWEST) / (HIGHEST - LOWEST) * BINS)
    return np.clip(place, 0, BINS - 1).astype(np.int64)


def _quantile(histogram: np.ndarray, q: float) -> float:
    place = int(np.searchsorted(np.cumsum(histogram), q * histogram.sum()))
    return LOWEST + (min(place, BINS - 1) + 0.5) * (HIGHEST - LOWEST) / BINS


def _sparse(counts: np.ndarray) -> list[list[int]]:
    filled = np.flatnonzero(counts)
    return [filled.tolist(), counts.ravel()[filled].astype(int).tolist()]


def _dense(sparse: Sequence[Sequence[int]], shape: tuple[int, ...]) -> np.ndarray:
    counts = np.zeros(shape)
    counts.ravel()[np.asarray(sparse[0], np.int64)] = sparse[1]
    return counts
