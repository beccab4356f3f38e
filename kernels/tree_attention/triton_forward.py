"""Forward kernel: one program per query block and query head, online softmax over the key blocks it sees."""

import triton
import triton.language as tl

from sprout.kernels.tree_attention.triton_tiles import HIGHEST, LOWEST, key_runs
from sprout.kernels.triton_softmax import FLOOR, LN2, LOG2E, absorb


@triton.jit
def load_rows(
    base, rows, limit, row_stride, size_stride, D: tl.constexpr, BLOCK_D: tl.constexpr, BOUNDED: tl.constexpr
):
    """[len(rows), BLOCK_D] of a [limit, D] matrix, zeros outside. Without BOUNDED all rows lie inside."""
    sizes = tl.arange(0, BLOCK_D)
    pointers = base + rows.to(tl.int64)[:, None] * row_stride + sizes.to(tl.int64)[None, :] * size_stride
    if BOUNDED and D != BLOCK_D:
        tile = tl.load(pointers, mask=(rows < limit)[:, None] & (sizes < D)[None, :], other=0.0)
    elif BOUNDED:
        tile = tl.load(pointers, mask=(rows < limit)[:, None], other=0.0)
    elif D != BLOCK_D:
        tile = tl.load(pointers, mask=(sizes < D)[None, :], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def store_rows(base, tile, rows, limit, row_stride, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Write the [limit, D] part of a tile; elements of a row are adjacent."""
    sizes = tl.arange(0, BLOCK_D)
    pointers = base + rows.to(tl.int64)[:, None] * row_stride + sizes[None, :]
    inside = (rows < limit)[:, None] & (sizes < D)[None, :]
    tl.store(pointers, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def forward_kernel(
    q, k, v, out, lse,  # [R, Hq, D], [S, Hkv, D] twice, [R, Hq, D], [R, Hq]
    query_enter, key_enter, key_exit,
    queries, keys, spans,
    R, S, blocks, heads,
    q_row, q_head, q_size, k_row, k_head, k_size, v_row, v_head, v_size,
    scale,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    # Late blocks see most keys, so they start first and the short ones fill the tail.
    pid = blocks - 1 - tl.program_id(0) % blocks
    head = (tl.program_id(0) // blocks).to(tl.int64)
    rows = pid * BLOCK_Q + tl.arange(0, BLOCK_Q)
    query = load_rows(q + head * q_head, rows, R, q_row, q_size, D, BLOCK_D, True)
    enter = tl.load(query_enter + rows, mask=rows < R, other=LOWEST)
    k += head // GROUP * k_head
    v += head // GROUP * v_head
    peak = tl.full([BLOCK_Q], FLOOR, tl.float32)
    mass = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)

    first, stop = tl.load(spans + pid * 2), tl.load(spans + pid * 2 + 1)
    while first < stop:
        full, partial, end = key_runs(queries, keys, pid, first, stop, SCAN)
        for block in range(full, partial):
            columns = block * BLOCK_K + tl.arange(0, BLOCK_K)
            key = load_rows(k, columns, S, k_row, k_size, D, BLOCK_D, False)
            value = load_rows(v, columns, S, v_row, v_size, D, BLOCK_D, False)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (scale * LOG2E)
            acc, mass, peak = absorb(acc, mass, peak, scores, value)
        for block in range(partial, end):
            columns = block * BLOCK_K + tl.arange(0, BLOCK_K)
            key = load_rows(k, columns, S, k_row, k_size, D, BLOCK_D, True)
            value = load_rows(v, columns, S, v_row, v_size, D, BLOCK_D, True)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (scale * LOG2E)
            seen = visible(enter[:, None], key_enter, key_exit, columns[None, :], S)
            acc, mass, peak = absorb(acc, mass, peak, tl.where(seen, scores, float("-inf")), value)
        first = end

    total = tl.where(mass == 0, 1.0, mass)
    store_rows(out + head * D, acc / total[:, None], rows, R, heads * D, D, BLOCK_D)
    log_total = tl.where(mass == 0, float("-inf"), (peak + tl.log2(total)) * LN2)
    tl.store(lse + rows.to(tl.int64) * heads + head, log_total, mask=rows < R)


@triton.jit
def visible(enter, key_enter, key_exit, columns, S):
    """Whether queries with DFS numbers `enter` see the keys `columns`; false beyond S."""
    begin = tl.load(key_enter + columns, mask=columns < S, other=HIGHEST)
    end = tl.load(key_exit + columns, mask=columns < S, other=LOWEST)
    return (begin <= enter) & (enter < end)
