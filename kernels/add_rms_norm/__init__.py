"""Residual addition and the root-mean-square normalisation of the sum, in one pass.

Every block of a pre-norm decoder adds its output to the residual stream and normalises the sum for the next
block. Apart, addition and norm move five matrices of [rows, H] through memory; together four: two are read
and two are written. The sum is rounded to the tensors' dtype before it is normalised, so the results are
those of `x + residual` and `rms_norm`, bit for bit on the CPU. The backward saves the sum (an output, which
lives anyway) and one number per row, and adds the gradient that arrives through the sum in the same pass.
About 5 FLOPs per element forward and 9 backward: bound by memory everywhere. See `rms_norm` for numerics.

The Triton kernels are those of `rms_norm` with a residual; the CPU paths compose the two ops. The native one
takes float32 and bfloat16 (summed in float32).
"""

from torch import Tensor

from sprout.kernels.dispatch import resolve


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual, weight, eps), x + residual).

    Differentiable in x, residual and weight; no input is modified.

    Args:
        x, residual: [..., H] floating point, alike, any strides.
        weight: [H], in the dtype of x.
        eps: added to the mean square before the inverse square root.

    Returns:
        (normalised, total), each [..., H] in the dtype of x.

    Raises:
        ValueError: residual is not like x, or weight is not [H] in the dtype of x.
    """
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(
            f"add_rms_norm: x {list(x.shape)} {x.dtype} and residual {list(residual.shape)} {residual.dtype} "
            "must be alike"
        )
    if weight.shape != x.shape[-1:] or weight.dtype != x.dtype:
        raise ValueError(
            f"add_rms_norm: weight must be [{x.shape[-1]}] {x.dtype}, not {list(weight.shape)} {weight.dtype}"
        )
    both: tuple[Tensor, Tensor] = resolve("add_rms_norm", x)(x, residual, weight, eps)
    return both
