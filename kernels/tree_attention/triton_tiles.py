"""Which tiles of the [R, S] score matrix the Triton kernels visit.

Queries and keys are cut into blocks of fixed size, in the given order. A block of queries is summarised by
the range of its DFS numbers, a block of keys by two ranges of query numbers: the *hull*, outside which no key
of the block is seen, and the *core*, inside which every key is. So a pair of blocks is

    skipped   if the range of the queries misses the hull of the keys
    full      if it lies in the core: no mask is needed
    partial   otherwise

and each block has a span [start, stop) of the other side's blocks outside which all are skipped. That is
O(R + S) memory, computed on the device without a synchronisation. Inside its span a kernel classifies SCAN
blocks at a time with one vector load, then loops over the next run of full blocks and the next run of partial
ones, so that the inner loops have no branches and get pipelined.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from sprout.kernels.launch import Blocks
from sprout.kernels.tree_attention.intervals import Intervals

FIRST, LAST = torch.iinfo(torch.int32).min + 1, torch.iinfo(torch.int32).max
LOWEST, HIGHEST = tl.constexpr(FIRST), tl.constexpr(LAST)
CHUNK = tl.constexpr(1024)


@dataclass(frozen=True)
class Tiles:
    """Summaries for blocks of `block_q` queries and `block_k` keys, all int32.

    queries      [nq, 2]  lowest and highest DFS number
    keys         [nk, 4]  hull (first, last), core (first, last); ranges are closed
    query_span   [nq, 2]  key blocks [start, stop) that a block of queries may see
    key_span     [nk, 2]  query blocks [start, stop) that may see a block of keys
    """

    queries: Tensor
    keys: Tensor
    query_span: Tensor
    key_span: Tensor

    @staticmethod
    def of(intervals: Intervals, block_q: int, block_k: int) -> Tiles:
        """The tiles of `intervals`; made at the first use, then kept in `intervals.derived`."""
        key = (Tiles, block_q, block_k)
        if key not in intervals.derived:
            intervals.derived[key] = Tiles._make(intervals, block_q, block_k)
        tiles: Tiles = intervals.derived[key]
        return tiles

    @staticmethod
    def _make(intervals: Intervals, block_q: int, block_k: int) -> Tiles:
        query, enter, last = intervals.query_enter, intervals.key_enter, intervals.key_exit - 1
        # A key added as padding is never seen: its range [LAST, FIRST] empties the core and leaves the hull.
        queries = [_blocks(query, block_q, LAST).amin(1), _blocks(query, block_q, FIRST).amax(1)]
        hull = [_blocks(enter, block_k, LAST).amin(1), _blocks(last, block_k, FIRST).amax(1)]
        core = [_blocks(enter, block_k, LAST).amax(1), _blocks(last, block_k, FIRST).amin(1)]
        summaries = torch.stack(queries, 1), torch.stack(hull + core, 1)
        return Tiles(*summaries, _spans(*summaries), _spans(*reversed(summaries)))


def _blocks(x: Tensor, size: int, filler: int) -> Tensor:
    """[n] -> [number of blocks, size]."""
    count = -(-x.shape[0] // size)
    return pad(x, (0, count * size - x.shape[0]), value=filler).view(count, size)


def _spans(own: Tensor, other: Tensor) -> Tensor:
    """[n, 2] first and one past the last of the other side's blocks whose range meets that of each block."""
    spans = torch.empty((own.shape[0], 2), dtype=torch.int32, device=own.device)
    if own.shape[0]:
        sides = own, own.stride(0), other, other.stride(0), other.shape[0]
        _spans_kernel[(own.shape[0],)](*sides, spans, **Blocks().launch())
    return spans


@triton.jit
def _spans_kernel(own, own_stride, other, other_stride, blocks, spans):
    pid = tl.program_id(0)
    low, high = tl.load(own + pid * own_stride), tl.load(own + pid * own_stride + 1)
    start, stop = blocks, 0
    for first in range(0, blocks, CHUNK):
        block = first + tl.arange(0, CHUNK)
        inside = block < blocks
        met = tl.load(other + block * other_stride, mask=inside, other=HIGHEST) <= high
        met &= low <= tl.load(other + block * other_stride + 1, mask=inside, other=LOWEST)
        start = tl.minimum(start, tl.min(tl.where(met, block, blocks)))
        stop = tl.maximum(stop, tl.max(tl.where(met, block + 1, 0)))
    tl.store(spans + pid * 2, start)
    tl.store(spans + pid * 2 + 1, stop)


@triton.jit
def key_runs(queries, keys, pid, first, stop, SCAN: tl.constexpr):
    """Next run of full key blocks [a, b) and of partial ones [b, c) of query block `pid`, from `first` on."""
    low, high = tl.load(queries + pid * 2), tl.load(queries + pid * 2 + 1)
    block = first + tl.arange(0, SCAN)
    inside = block < stop
    met = (tl.load(keys + block * 4, mask=inside, other=HIGHEST) <= high) & (
        low <= tl.load(keys + block * 4 + 1, mask=inside, other=LOWEST)
    )
    full = (tl.load(keys + block * 4 + 2, mask=inside, other=HIGHEST) <= low) & (
        high <= tl.load(keys + block * 4 + 3, mask=inside, other=LOWEST)
    )
    return _runs(block, met, full, tl.minimum(first + SCAN, stop))


@triton.jit
def query_runs(queries, keys, pid, first, stop, SCAN: tl.constexpr):
    """Next run of full query blocks [a, b) and of partial ones [b, c) of key block `pid`, from `first` on."""
    block = first + tl.arange(0, SCAN)
    inside = block < stop
    low = tl.load(queries + block * 2, mask=inside, other=HIGHEST)
    high = tl.load(queries + block * 2 + 1, mask=inside, other=LOWEST)
    met = (tl.load(keys + pid * 4) <= high) & (low <= tl.load(keys + pid * 4 + 1))
    full = (tl.load(keys + pid * 4 + 2) <= low) & (high <= tl.load(keys + pid * 4 + 3)) & inside
    return _runs(block, met, full, tl.minimum(first + SCAN, stop))


@triton.jit
def _runs(block, met, full, end):
    full &= met
    a = tl.min(tl.where(met, block, end))
    b = tl.min(tl.where((block >= a) & (full == 0), block, end))
    c = tl.min(tl.where((block >= b) & ((met == 0) | full), block, end))
    return a, b, c
