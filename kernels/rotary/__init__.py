"""Rotary position embedding of queries and keys.

Idea: a row's D/2 angles are the same for all of its heads, so one program reads them once and turns every
query and key head of the row; one launch serves both. A rotation is orthogonal: the backward is the same
kernel with the opposite sign and saves nothing but the tables. Positions are the rows' own (they restart in
packed and tree-shaped batches), so the tables come in by row and nothing here counts from 0.

Cost: 3 FLOPs per element and two transfers (read, write), plus D/2 cosines and sines a row; memory-bound.
Numerics: float32 arithmetic whatever the inputs, rounded once at the end.
Triton: heads and pairs are padded to powers of two under a mask, so 5 heads of size 80 or 96 are fine; up to
32,768 padded pairs a row. Compiled for sm_80 and sm_90 without spills. Native: C++ and OpenMP over rows,
float32 and bfloat16 (computed in float32). Measured so far on CPUs only.
"""

from torch import Tensor

from sprout.kernels.dispatch import resolve


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their row's angles (RoFormer, arXiv 2104.09864, eq. 34; half-rotation
    convention).

    Component d of a head pairs with component d + D/2, as in Hugging Face's `rotate_half`; every head of a
    row turns by the same D/2 angles. Computed in float32 (float64 for float64 inputs) and rounded once.
    Differentiable in q and k; the backward is the opposite rotation and saves only cos and sin. Inputs are
    never modified.

    Args:
        q: [R, Hq, D], any strides (views of a fused projection are fine).
        k: [R, Hkv, D].
        cos, sin: [R, D/2], of the rows' own positions; no gradient flows into them.

    Returns:
        (q, k) rotated, new contiguous tensors in their input dtypes.

    Raises:
        ValueError: D is odd, or cos and sin are not [R, D/2].
    """
    R, D = q.shape[0], q.shape[-1]
    if D % 2 or k.shape[0] != R or k.shape[-1] != D:
        raise ValueError(
            f"rotary: q {list(q.shape)} and k {list(k.shape)} need the same rows and one even head size"
        )
    if cos.shape != (R, D // 2) or sin.shape != (R, D // 2):
        raise ValueError(
            f"rotary: cos and sin must be [{R}, {D // 2}], not {list(cos.shape)} and {list(sin.shape)}"
        )
    rotated: tuple[Tensor, Tensor] = resolve("rotary", q)(q, k, cos, sin)
    return rotated
