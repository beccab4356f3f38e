"""Backward kernels (FlashAttention-2, arXiv 2307.08691, algorithm 2), without atomics.

    weight = exp(score - lse)    d(score) = weight * (dO . v - delta)    delta = dO . out

`grad_query_kernel` takes a query block at a time and leaves delta behind for `grad_key_kernel`, which takes a
key block at a time and sums over all queries and all query heads of its key head. Each recomputes the scores.
"""

import triton
import triton.language as tl

from sprout.kernels.tree_attention.triton_forward import load_rows, store_rows, visible
from sprout.kernels.tree_attention.triton_tiles import LOWEST, key_runs, query_runs
from sprout.kernels.triton_softmax import LOG2E


@triton.jit
def grad_query_kernel(
    q, k, v, grad_out, out, lse, delta, grad_q,  # the first four with strides, the others contiguous
    query_enter, key_enter, key_exit,
    queries, keys, spans,
    R, S, blocks, heads,
    q_row, q_head, q_size, k_row, k_head, k_size, v_row, v_head, v_size, o_row, o_head, o_size,
    scale,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    pid = blocks - 1 - tl.program_id(0) % blocks
    head = (tl.program_id(0) // blocks).to(tl.int64)
    rows = pid * BLOCK_Q + tl.arange(0, BLOCK_Q)
    query = load_rows(q + head * q_head, rows, R, q_row, q_size, D, BLOCK_D, True)
    grad = load_rows(grad_out + head * o_head, rows, R, o_row, o_size, D, BLOCK_D, True)
    output = load_rows(out + head * D, rows, R, heads * D, 1, D, BLOCK_D, True)
    row_delta = tl.sum(grad.to(tl.float32) * output.to(tl.float32), 1)
    per_row = rows.to(tl.int64) * heads + head
    tl.store(delta + per_row, row_delta, mask=rows < R)
    row_lse = load_lse(lse + per_row, rows < R)
    enter = tl.load(query_enter + rows, mask=rows < R, other=LOWEST)
    k += head // GROUP * k_head
    v += head // GROUP * v_head
    acc = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)

    first, stop = tl.load(spans + pid * 2), tl.load(spans + pid * 2 + 1)
    while first < stop:
        full, partial, end = key_runs(queries, keys, pid, first, stop, SCAN)
        for block in range(full, partial):
            columns = block * BLOCK_K + tl.arange(0, BLOCK_K)
            key = load_rows(k, columns, S, k_row, k_size, D, BLOCK_D, False)
            value = load_rows(v, columns, S, v_row, v_size, D, BLOCK_D, False)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (scale * LOG2E)
            weights = tl.exp2(scores - row_lse[:, None])
            acc = _add_grad_query(acc, weights, grad, value, row_delta, key)
        for block in range(partial, end):
            columns = block * BLOCK_K + tl.arange(0, BLOCK_K)
            key = load_rows(k, columns, S, k_row, k_size, D, BLOCK_D, True)
            value = load_rows(v, columns, S, v_row, v_size, D, BLOCK_D, True)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (scale * LOG2E)
            seen = visible(enter[:, None], key_enter, key_exit, columns[None, :], S)
            weights = tl.where(seen, tl.exp2(scores - row_lse[:, None]), 0.0)
            acc = _add_grad_query(acc, weights, grad, value, row_delta, key)
        first = end
    store_rows(grad_q + head * D, acc * scale, rows, R, heads * D, D, BLOCK_D)


@triton.jit
def _add_grad_query(acc, weights, grad, value, row_delta, key):
    grad_weights = tl.dot(grad, tl.trans(value), input_precision="ieee")
    grad_scores = weights * (grad_weights - row_delta[:, None])
    return tl.dot(grad_scores.to(key.dtype), key, acc, input_precision="ieee")


@triton.jit
def load_lse(pointers, inside):
    """In units of log 2; +inf where a row sees nothing or does not exist, which makes all its weights 0."""
    lse = tl.load(pointers, mask=inside, other=float("inf"))
    return tl.where(lse == float("-inf"), float("inf"), lse) * LOG2E


@triton.jit
def grad_key_kernel(
    q, k, v, grad_out, lse, delta, grad_k, grad_v,  # the first four with strides, the others contiguous
    query_enter, key_enter, key_exit,
    queries, keys, spans,
    R, S, blocks, heads,
    q_row, q_head, q_size, k_row, k_head, k_size, v_row, v_head, v_size, o_row, o_head, o_size,
    scale,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    # Early blocks are seen by most queries, so they start first.
    pid = tl.program_id(0) % blocks
    key_head = (tl.program_id(0) // blocks).to(tl.int64)
    columns = pid * BLOCK_K + tl.arange(0, BLOCK_K)
    key = load_rows(k + key_head * k_head, columns, S, k_row, k_size, D, BLOCK_D, True)
    value = load_rows(v + key_head * v_head, columns, S, v_row, v_size, D, BLOCK_D, True)
    acc_k = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    acc_v = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)

    start, stop = tl.load(spans + pid * 2), tl.load(spans + pid * 2 + 1)
    for member in range(GROUP):
        head = key_head * GROUP + member
        first = start
        while first < stop:
            full, partial, end = query_runs(queries, keys, pid, first, stop, SCAN)
            for block in range(full, partial):
                rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
                query = load_rows(q + head * q_head, rows, R, q_row, q_size, D, BLOCK_D, True)
                grad = load_rows(grad_out + head * o_head, rows, R, o_row, o_size, D, BLOCK_D, True)
                per_row = rows.to(tl.int64) * heads + head
                row_lse = load_lse(lse + per_row, rows < R)
                row_delta = tl.load(delta + per_row, mask=rows < R, other=0.0)
                scores = tl.dot(key, tl.trans(query), input_precision="ieee") * (scale * LOG2E)
                weights = tl.exp2(scores - row_lse[None, :])
                acc_k, acc_v = _add_grad_key(acc_k, acc_v, weights, query, grad, value, row_delta)
            for block in range(partial, end):
                rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
                query = load_rows(q + head * q_head, rows, R, q_row, q_size, D, BLOCK_D, True)
                grad = load_rows(grad_out + head * o_head, rows, R, o_row, o_size, D, BLOCK_D, True)
                per_row = rows.to(tl.int64) * heads + head
                row_lse = load_lse(lse + per_row, rows < R)
                row_delta = tl.load(delta + per_row, mask=rows < R, other=0.0)
                scores = tl.dot(key, tl.trans(query), input_precision="ieee") * (scale * LOG2E)
                enter = tl.load(query_enter + rows, mask=rows < R, other=LOWEST)
                seen = visible(enter[None, :], key_enter, key_exit, columns[:, None], S)
                weights = tl.where(seen, tl.exp2(scores - row_lse[None, :]), 0.0)
                acc_k, acc_v = _add_grad_key(acc_k, acc_v, weights, query, grad, value, row_delta)
            first = end
    key_row = heads // GROUP * D
    store_rows(grad_k + key_head * D, acc_k * scale, columns, S, key_row, D, BLOCK_D)
    store_rows(grad_v + key_head * D, acc_v, columns, S, key_row, D, BLOCK_D)


@triton.jit
def _add_grad_key(acc_k, acc_v, weights, query, grad, value, row_delta):
    """weights [BLOCK_K, BLOCK_Q]."""
    acc_v = tl.dot(weights.to(grad.dtype), grad, acc_v, input_precision="ieee")
    grad_weights = tl.dot(value, tl.trans(grad), input_precision="ieee")
    grad_scores = weights * (grad_weights - row_delta[None, :])
    acc_k = tl.dot(grad_scores.to(query.dtype), query, acc_k, input_precision="ieee")
    return acc_k, acc_v
