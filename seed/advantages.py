"""Group-relative advantages.

The baseline of a group sees the outcome rewards of usable trajectories only. A trajectory without a finite
reward, or one that was rejected, is left out before any statistic is taken: it can neither shift its group
nor poison it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

EPSILON = 1e-6


def group_advantages(
    rewards: Sequence[float | None],
    turns: Sequence[int],
    *,
    statistics: Literal["trajectory", "turn"] = "trajectory",
    scale: Literal["std", "none"] = "std",
    min_std: float = 0.0,
) -> Floats:
    """Advantage of each trajectory of one group, [N]; NaN where the reward is None or not finite.

    `(R - mean) / (std + 1e-6)`, or `R - mean` with scale "none"; std is the unbiased one. With statistics
    "turn" every trajectory counts as often as it has turns, so long episodes weigh more. A group of one,
    without spread, or with a std below `min_std` has advantage exactly 0.
    """
    values = np.array([np.nan if reward is None else reward for reward in rewards], np.float64)
    known = np.isfinite(values)
    advantages = np.where(known, 0.0, np.nan)
    if known.any() and np.ptp(values[known]) > 0:
        counts = np.asarray(turns)[known] if statistics == "turn" else np.ones(int(known.sum()), np.int64)
        rows = np.repeat(values[known], counts)
        std = rows.std(ddof=1)
        if np.ptp(rows) > 0 and std >= min_std:
            divisor = std + EPSILON if scale == "std" else 1.0
            advantages[known] = (values[known] - rows.mean()) / divisor
    return advantages.astype(np.float32)


def turn_advantage(advantage: float, valid: bool, penalty: float) -> float:
    """A turn's advantage: its trajectory's, less `penalty` if its action was invalid.

    The penalty enters after the group statistics. It therefore acts on the offending turn alone, moves no
    baseline, and keeps its size in groups that all fail, where dividing by a tiny spread would blow it up.
    """
    return advantage if valid else advantage - penalty
