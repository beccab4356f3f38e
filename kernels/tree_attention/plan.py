"""The blocks of a forest as lists of keys to gather, for plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from sprout.kernels.tree_attention.ranges import Integers, Ranges

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
    def make(ranges: Ranges, device: torch.device) -> Plan:
        """The blocks live on `device`."""
        order = rank = None
        if not ranges.is_sorted:
            order = torch.from_numpy(ranges.order.astype(np.int64)).to(device)
            rank = order.argsort()
        cuts = ranges.cuts(MAX_ROWS, BLOCK_COST, KEY_COST).tolist()
        blocks = tuple(_block(ranges.first, ranges.last, a, b, device) for a, b in pairwise(cuts))
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
