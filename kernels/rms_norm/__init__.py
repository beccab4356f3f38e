"""Root-mean-square normalisation over the last dimension."""

from torch import Tensor

from sprout.kernels.dispatch import resolve


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467, eq. 4) with the rounding of Hugging Face's
    Qwen2RMSNorm.

    The mean square and the scaling are computed in float32 (float64 for float64 inputs), the normalised value
    is rounded to x's dtype, and the weight is applied after that. Differentiable in x and weight; the
    backward saves x and one number per row.

    Args:
        x: [..., H] floating point, any strides.
        weight: [H], in the dtype of x.
        eps: added to the mean square before the inverse square root.

    Returns:
        [..., H] in the dtype of x.

    Raises:
        ValueError: weight is not [H] in the dtype of x.
    """
    if weight.shape != x.shape[-1:] or weight.dtype != x.dtype:
        raise ValueError(
            f"rms_norm: weight must be [{x.shape[-1]}] {x.dtype}, not {list(weight.shape)} {weight.dtype}"
        )
    normalised: Tensor = resolve("rms_norm", x)(x, weight, eps)
    return normalised
