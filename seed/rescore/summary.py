"""What the scores say: Delta and gate by outcome, place, confidence and kind of token; and the controls'."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import numpy as np

from sprout.seed.rescore.kinds import KINDS, TokenTexts
from sprout.seed.rescore.score import NULL, OWN, SHUFFLED, ScoredTurn
from sprout.seed.rescore.tally import Calibration, Tally
from sprout.seed.trajectory import Trajectory

OUTCOMES = ("failure", "success", "unknown")
TURNS = {"0": 0, "1": 1, "2-3": 2, "4-7": 4, "8-15": 8, "16 and later": 16}
PLACES = {"0": 0, "1-3": 1, "4-15": 4, "16-63": 16, "64 and later": 64}
LOGPROBS = {
    "below -8": -np.inf,
    "-8 to -4": -8,
    "-4 to -2": -4,
    "-2 to -1": -2,
    "-1 to -0.1": -1,
    "above -0.1": -0.1,
}
SPLITS = {
    "all": ("all",),
    "outcome": OUTCOMES,
    "turn": tuple(TURNS),
    "place_in_action": tuple(PLACES),
    "logprob": tuple(LOGPROBS),
    "token_kind": KINDS,
}
OF_CONTROLS = ("all", "outcome")


class Summary:
    """Grows by scored turns, never in size."""

    def __init__(self, beta: float, texts: TokenTexts) -> None:
        self._beta, self._texts = beta, texts
        self._tallies = {
            (variant, split): Tally(labels)
            for variant in (OWN, NULL, SHUFFLED)
            for split, labels in SPLITS.items()
            if variant == OWN or split in OF_CONTROLS
        }
        self._calibrations = {
            (variant, unit): Calibration()
            for variant in (OWN, NULL, SHUFFLED)
            for unit in ("trajectory", "turn")
        }
        self.counts = dict.fromkeys(OUTCOMES, 0)

    def add(self, turns: Iterable[ScoredTurn]) -> None:
        """The turns of whole trajectories, one trajectory after the other."""
        for _, group in groupby(turns, key=lambda turn: id(turn.trajectory)):
            self._add_trajectory(list(group))

    def gate(self, delta: np.ndarray) -> np.ndarray:
        """g = sigmoid(beta * Delta)."""
        return 1 / (1 + np.exp(-np.clip(self._beta * delta, -60, 60)))

    def record(self) -> dict[str, Any]:
        """JSON values for summary.json."""
        return {
            "trajectories": self.counts,
            "scores": {v: _records(v, self._tallies) for v in (OWN, NULL, SHUFFLED)},
            "calibration": {v: _records(v, self._calibrations) for v in (OWN, NULL, SHUFFLED)},
        }

    def state(self) -> dict[str, Any]:
        """JSON values that `restore` reads."""
        return {
            "counts": self.counts,
            "tallies": [tally.state() for tally in self._tallies.values()],
            "calibrations": [calibration.state() for calibration in self._calibrations.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` wrote."""
        self.counts = dict(state["counts"])
        for tally, stored in zip(self._tallies.values(), state["tallies"], strict=True):
            tally.restore(stored)
        for calibration, stored in zip(self._calibrations.values(), state["calibrations"], strict=True):
            calibration.restore(stored)

    def _add_trajectory(self, turns: list[ScoredTurn]) -> None:
        label = outcome(turns[0].trajectory)
        self.counts[label] += 1
        for turn in turns:
            labels = self._labels(turn, label)
            for variant in turn.teachers:
                delta = turn.delta(variant).astype(np.float64)
                for split, places in labels.items():
                    if tally := self._tallies.get((variant, split)):
                        tally.add(places, delta, self.gate(delta))
        if label != "unknown":
            self._calibrate(turns, label == "success")

    def _calibrate(self, turns: list[ScoredTurn], success: bool) -> None:
        for variant in turns[0].teachers:
            means = [float(turn.delta(variant).mean()) for turn in turns if variant in turn.teachers]
            for mean in means:
                self._calibrations[variant, "turn"].add(mean, success)
            self._calibrations[variant, "trajectory"].add(float(np.mean(means)), success)

    def _labels(self, turn: ScoredTurn, label: str) -> dict[str, np.ndarray]:
        """Per split the label's index of every token."""
        count = len(turn.student)
        return {
            "all": np.zeros(count, np.int64),
            "outcome": np.full(count, OUTCOMES.index(label)),
            "turn": np.full(count, _bin(TURNS, np.array(turn.number))),
            "place_in_action": _bin(PLACES, np.arange(count)),
            "logprob": _bin(LOGPROBS, turn.student),
            "token_kind": self._texts.kinds(turn.trajectory.turns[turn.number].action),
        }


def _records(variant: str, kept: Mapping[tuple[str, str], Tally | Calibration]) -> dict[str, Any]:
    return {name: one.record() for (owner, name), one in kept.items() if owner == variant}


def describe(summary: Mapping[str, Any]) -> str:
    """The summary in a few lines."""
    lines = ["  ".join(f"{count} {name}" for name, count in summary["trajectories"].items())]
    lines += [f"left out: {count} {name}" for name, count in summary["left_out"].items()]
    for variant, splits in summary["scores"].items():
        if not splits["all"]:
            continue
        auc = summary["calibration"][variant]["trajectory"]["auc"]
        parts = [
            f"{label}: delta {values['delta_mean']:+.4f}, gate {values['gate_mean']:.3f}"
            for label, values in {**splits["all"], **splits["outcome"]}.items()
        ]
        known = "one outcome only" if auc is None else f"AUC of delta for success {auc:.3f}"
        lines.append(f"{variant:9} {'; '.join(parts)}; {known}")
    work = summary["throughput"]
    lines.append(
        f"{work['pair_tokens_per_s']:.0f} pair tokens/s; {work['rows']} rows for "
        f"{work['logical_tokens']} tokens (reuse {work['reuse_ratio']:.2f}, {work['flops_saving']:.2f} times "
        f"fewer FLOPs); peak memory {work['peak_memory_mb']:.0f} MB"
    )
    return "\n".join(lines)


def outcome(trajectory: Trajectory) -> str:
    """success, failure, or unknown where no reward is known."""
    if trajectory.reward is None:
        return "unknown"
    return "success" if trajectory.success else "failure"


def _bin(starts: Mapping[str, float], values: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.array(list(starts.values())), values, side="right") - 1
