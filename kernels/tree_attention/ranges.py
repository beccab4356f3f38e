"""Which sorted queries see each key, and where to cut the queries into blocks that share most of their keys.

Sorted by DFS number, the queries that see a key are one contiguous range [first, last). A block [a, b) needs
the keys whose range meets it, #(first < b) - #(last <= a) of them, so the cost of any cut is known from two
cumulative counts, and dynamic programming finds the cheapest cuts: they fall on the borders of long branches
and gather short ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Ranges:
    """Key j is seen by the queries [first[j], last[j]) of the sorted order.

    order          [R] row of each sorted query; 0, 1, 2, ... if `is_sorted`
    first, last    [S]
    """

    order: Integers
    is_sorted: bool
    first: Integers
    last: Integers

    @staticmethod
    def make(query_enter: Tensor, key_enter: Tensor, key_exit: Tensor) -> Ranges:
        """From the three vectors of `Intervals`."""
        enter = query_enter.cpu().numpy()
        is_sorted = not np.any(enter[1:] < enter[:-1])
        order = np.arange(len(enter)) if is_sorted else np.argsort(enter, kind="stable")
        enter = enter[order]
        first, last = (np.searchsorted(enter, x.cpu().numpy()) for x in (key_enter, key_exit))
        return Ranges(order.astype(np.int32), is_sorted, first.astype(np.int32), last.astype(np.int32))

    def cuts(self, max_rows: int, block_cost: int, key_cost: int) -> Integers:
        """[blocks + 1] ascending, from 0 to R: the cheapest blocks of at most `max_rows` queries.

        A block costs one unit per (query, key) pair, `block_cost`, and `key_cost` per key.
        """
        rows, seen = len(self.order), self.first < self.last
        begun = np.cumsum(np.bincount(self.first[seen] + 1, minlength=rows + 1))  # [b] keys with first < b
        ended = np.cumsum(np.bincount(self.last[seen], minlength=rows + 1))  # [a] keys with last <= a
        cuts: Integers = _cheapest_cuts(begun, ended, max_rows, block_cost, key_cost)
        return cuts


@numba.njit(cache=True)
def _cheapest_cuts(begun: Any, ended: Any, max_rows: int, block_cost: int, key_cost: int) -> Any:
    rows = len(begun) - 1
    cost = np.zeros(rows + 1, dtype=np.int64)
    previous = np.zeros(rows + 1, dtype=np.int64)
    for b in range(1, rows + 1):
        best = np.iinfo(np.int64).max
        for a in range(max(0, b - max_rows), b):
            total = cost[a] + block_cost + (b - a + key_cost) * (begun[b] - ended[a])
            if total < best:
                best, previous[b] = total, a
        cost[b] = best
    cuts = [rows]
    while cuts[-1] > 0:
        cuts.append(previous[cuts[-1]])
    return np.array(cuts[::-1], dtype=np.int32)
