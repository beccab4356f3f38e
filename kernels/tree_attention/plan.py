"""Cuts the queries of a forest into blocks that share most of their keys.

Sorted by DFS number, the queries that see a key are one contiguous range [first, last). A block [a, b) needs
the keys whose range meets it, #(first < b) - #(last <= a) of them, so the cost of any cut is known from two
cumulative counts, and dynamic programming finds the cheapest cuts: they fall on the borders of long branches
and gather short ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]

MAX_ROWS = 128
# The cost of a block in units of one (query, key) pair: fixed, and per key (gather, packing for the GEMM).
BLOCK_COST, KEY_COST = 4096, 16


@dataclass(frozen=True)
class Block:
    """Queries [start, stop) in sorted order, and the n keys that any of them sees.

    keys    [n] int64; keys seen by every query of the block come first
    bias    [stop - start, 1, p] float32 for the last p keys: 0 where visible, -inf elsewhere
    """

    start: int
    stop: int
    keys: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Plan:
    """The blocks of a forest. `order` [R] int64 sorts the queries and `rank` undoes it; None if sorted."""

    blocks: tuple[Block, ...]
    order: Tensor | None
    rank: Tensor | None

    @staticmethod
    def make(query_enter: Tensor, key_enter: Tensor, key_exit: Tensor) -> Plan:
        """From the three vectors of `Intervals`; the blocks live on their device."""
        device = query_enter.device
        enter = query_enter.cpu().numpy()
        order = rank = None
        if np.any(enter[1:] < enter[:-1]):
            permutation = np.argsort(enter, kind="stable")
            order = torch.from_numpy(permutation).to(device)
            rank = torch.from_numpy(np.argsort(permutation)).to(device)
            enter = enter[permutation]
        first = np.searchsorted(enter, key_enter.cpu().numpy())
        last = np.searchsorted(enter, key_exit.cpu().numpy())
        cuts = _cut(first, last, len(enter))
        blocks = tuple(_block(first, last, a, b, device) for a, b in pairwise(cuts.tolist()))
        return Plan(blocks, order, rank)


def _block(first: Integers, last: Integers, start: int, stop: int, device: torch.device) -> Block:
    full = np.flatnonzero((first <= start) & (last >= stop))
    partial = np.flatnonzero(
        (first < stop) & (last > start) & (first < last) & ((first > start) | (last < stop))
    )
    rows = np.arange(start, stop)[:, None, None]
    visible = (first[partial] <= rows) & (rows < last[partial])
    bias = np.where(visible, np.float32(0), np.float32(-np.inf))
    keys = torch.from_numpy(np.concatenate((full, partial)))
    return Block(start, stop, keys.to(device), torch.from_numpy(bias).to(device))


def _cut(first: Integers, last: Integers, rows: int) -> Integers:
    """[blocks + 1] ascending, from 0 to rows."""
    seen = first < last
    begun = np.cumsum(np.bincount(first[seen] + 1, minlength=rows + 1))  # [b] keys with first < b
    ended = np.cumsum(np.bincount(last[seen], minlength=rows + 1))  # [a] keys with last <= a
    cuts: Integers = _cheapest_cuts(begun, ended, MAX_ROWS, BLOCK_COST, KEY_COST)
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
    return np.array(cuts[::-1], dtype=np.int64)
