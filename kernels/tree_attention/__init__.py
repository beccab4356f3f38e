"""Attention over a forest: every row sees its ancestors and itself.

Idea. A forest in DFS order turns "is an ancestor of" into two comparisons of integers, so the mask of R x
S pairs is three vectors. Blocks of rows inherit them as ranges, from which a kernel knows without looking
at the rows whether a pair of blocks is skipped, full (no mask needed) or partial; a shared prefix is one
block of keys that many queries read, never copied per branch. Rows that are only scored are queries of a
call without autograd and keys of no trained query, so the backward does not contain them at all.

Memory. Between forward and backward: q, k, v, out and lse. Summaries of blocks: O(R + S) integers per
pair of block sizes, made at the first use of an `Intervals` object and shared by all layers. Triton's
backward adds delta [R, Hq]; other backends a block of scores. Nothing grows with R * S.

FLOPs. With P visible pairs per query head: forward 4 P D, backward 10 P D. The Triton backward does 14 P
D: dQ takes a block of queries at a time, dK and dV a block of keys, and each recomputes the scores, the
price of summing without atomics. Partial blocks are computed whole.

Numerics. Scores, softmax and all sums are float32. Half types round the weights and d(score) to the
inputs' dtype before they enter a matrix product, as any tensor-core attention does; float32 products are
IEEE, not TF32. A row's sum runs over its key blocks in rising order, dK and dV over query heads, then
query blocks: the same bits every time. The Triton kernels are tested in Triton's interpreter in float32
and float16 and compiled ahead of time for sm_80 and sm_90; they have not run on a GPU, so no speed is
claimed for them here.

Native CPU. Keys, values and blocks of 144 query rows (the heads of a key head folded in) are copied as
float32 panels of 16 columns, so every product is a loop with constant strides whose sums stay in registers
(6 x 16 floats with AVX2). A panel is skipped, full or partial by its least and greatest range ends, and
only for the tiles of rows that see it. Backward: a task is a share of the blocks under one key head, owns
its dQ and has its own sums of dK and dV, at most max(16, Hkv) x 2 x S x D floats; shares do not depend on
the threads, so nor do the bits. bfloat16 is computed in float32 throughout; out is kept in float32 for the
backward. One Zen 1 core (AVX2, 2 GHz, 32 GFLOP/s peak, CPU time, beside other work), causal float32, 1,024
to 4,096 rows, torch's causal attention = 1: forward 1.13-1.32 and forward + backward 1.07-1.34 at D = 64,
1.19-1.40 and 1.04-1.41 at D = 128; 22-30 GFLOP/s. Canonical forest of 5,148 rows, D = 64, against unrolled
torch: 6.3 forward, 5.9 full, where visible pairs predict 4.1. AVX-512 and baseline builds: not timed.
"""

from torch import Tensor

from sprout.kernels.dispatch import resolve
from sprout.kernels.tree_attention.intervals import Intervals

__all__ = ["Intervals", "tree_attention"]


def tree_attention(
    q: Tensor, k: Tensor, v: Tensor, intervals: Intervals, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(scale * q k^T) v over the keys each query may see, with grouped query heads.

    Key j is visible to query i iff key_enter[j] <= query_enter[i] < key_exit[j]. With DFS numbers this is
    "j is an ancestor of i, or i itself"; a causal sequence and a packed batch of sequences are special cases.
    Query head h uses key head h // (Hq / Hkv). Scores, softmax and sums are float32 (float64 for float64
    inputs). Memory grows with R + S and one block of scores, never with R * S. The backward recomputes the
    scores from lse (FlashAttention-2, arXiv 2307.08691, algorithm 2) and is deterministic.

    Args:
        q: [R, Hq, D], any strides, D from 1 to 256.
        k, v: [S, Hkv, D], any strides; Hq is a multiple of Hkv.
        intervals: who sees whom, for these R queries and S keys. Reuse one object for all layers: it keeps
            the plan that backends derive from it.
        scale: multiplies the scores; default D ** -0.5.

    Returns:
        out [R, Hq, D] in q's dtype, differentiable in q, k and v, and lse [R, Hq], the natural log of the
        softmax denominators, not differentiable. A query without a visible key gets out 0, lse -inf and
        passes no gradient.

    Raises:
        ValueError: shapes that do not fit together.
    """
    R, S = intervals.query_enter.shape[0], intervals.key_enter.shape[0]
    if q.ndim != 3 or k.ndim != 3 or q.shape[0] != R or k.shape[0] != S or v.shape != k.shape:
        raise ValueError(
            f"tree_attention: intervals of {R} queries and {S} keys do not fit q {list(q.shape)}, "
            f"k {list(k.shape)}, v {list(v.shape)}"
        )
    if q.shape[2] != k.shape[2] or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"tree_attention: heads of q {list(q.shape)} and k {list(k.shape)} do not match")
    scale = q.shape[2] ** -0.5 if scale is None else scale
    result: tuple[Tensor, Tensor] = resolve("tree_attention", q)(q, k, v, intervals, scale)
    return result
