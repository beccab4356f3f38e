"""Numbers about finished episodes: success with its confidence interval, and the usual per-update metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sprout.seed.trajectory import Trajectory


@dataclass(frozen=True)
class SuccessRate:
    """Success over a set of episodes; `by_family` holds (successes, episodes), `macro` averages families."""

    successes: int
    episodes: int
    by_family: dict[str, tuple[int, int]]

    @property
    def overall(self) -> float:
        return self.successes / self.episodes if self.episodes else 0.0

    @property
    def macro(self) -> float:
        rates = [won / played for won, played in self.by_family.values()]
        return float(np.mean(rates)) if rates else 0.0

    @property
    def ci95(self) -> tuple[float, float]:
        return wilson_interval(self.successes, self.episodes)

    def metrics(self, prefix: str) -> dict[str, float]:
        """`prefix`/success_rate, macro_success_rate, ci95_low, ci95_high, tasks, FAMILY_success_rate."""
        low, high = self.ci95
        named = {"success_rate": self.overall, "macro_success_rate": self.macro}
        named |= {"ci95_low": low, "ci95_high": high, "tasks": float(self.episodes)}
        named |= {f"{family}_success_rate": won / played for family, (won, played) in self.by_family.items()}
        return {f"{prefix}/{name}": value for name, value in named.items()}


def success_rate(trajectories: Iterable[Trajectory]) -> SuccessRate:
    """Success overall and by family."""
    by_family: dict[str, tuple[int, int]] = {}
    for trajectory in trajectories:
        won, played = by_family.get(trajectory.family, (0, 0))
        by_family[trajectory.family] = (won + trajectory.success, played + 1)
    totals = np.sum(list(by_family.values()) or [(0, 0)], axis=0)
    return SuccessRate(int(totals[0]), int(totals[1]), dict(sorted(by_family.items())))


def wilson_interval(successes: int, trials: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson score interval of a rate, by default at 95 %; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    rate, share = successes / trials, z * z / trials
    centre = (rate + share / 2) / (1 + share)
    half = z / (1 + share) * math.sqrt(rate * (1 - rate) / trials + share / (4 * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


# 97.5 % quantiles of Student's t by degrees of freedom, 1 to 10
_STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def mean_interval(values: Sequence[float]) -> dict[str, Any]:
    """{"mean", "ci95": [low, high]} of independent values by Student's t; ci95 is None for fewer than two."""
    count, mean = len(values), float(np.mean(values))
    if count < 2:
        return {"mean": mean, "ci95": None}
    freedom = count - 1
    # beyond the table, the first terms of the quantile's expansion about the normal one
    quantile = _STUDENT_T[freedom - 1] if freedom <= 10 else 1.95996 + 2.3723 / freedom + 2.8225 / freedom**2
    half = quantile * float(np.std(values, ddof=1)) / math.sqrt(count)
    return {"mean": mean, "ci95": [mean - half, mean + half]}


def episode_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Metrics of an update's episodes under verl's names; token counts are per turn."""
    if not trajectories:
        return {}
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    rewards = [t.reward for t in trajectories if t.reward is not None and math.isfinite(t.reward)]
    contexts = [turn.shared + len(turn.tail) for turn in turns]
    metrics = success_rate(trajectories).metrics("episode")
    metrics |= _spread("episode/reward", rewards) | _spread("critic/score", rewards)
    metrics |= _spread("episode/length", [len(trajectory.turns) for trajectory in trajectories])
    metrics |= _spread("response_length", [len(turn.action) for turn in turns])
    metrics |= _spread("prompt_length", contexts)
    metrics["response_length/clip_ratio"] = _mean([turn.finished == "length" for turn in turns])
    metrics["episode/valid_action_ratio"] = _mean([turn.admissible for turn in turns])
    metrics["episode/well_formed_ratio"] = _mean([turn.well_formed for turn in turns])
    metrics["episode/truncated_ratio"] = _mean([trajectory.truncated for trajectory in trajectories])
    return metrics


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    statistics = {"mean": _mean(values), "max": float(max(values)), "min": float(min(values))}
    return {f"{name}/{statistic}": value for statistic, value in statistics.items()}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
