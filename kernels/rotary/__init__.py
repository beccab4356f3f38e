"""Rotary position embedding of queries and keys."""

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
