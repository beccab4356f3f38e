"""Root-mean-square normalisation over the last dimension.

Idea: a row is read once, its mean square found, and the row scaled, all in registers. The backward reads x
and the upstream gradient once each and keeps nothing but x and one float32 per row between the passes;
autograd over plain torch keeps five tensors.

    d(x_i) = (w_i g_i - n_i mean(w g n)) / rms(x),    d(w_i) = sum over rows of g_i n_i,    n = x / rms(x)

d(weight) is deterministic: each program adds its own rows in rising order into one float32 row, and these
partial rows (at most 1,024 of them on a GPU) are then summed in a fixed order. No atomics.

Cost per element: 4 FLOPs and two transfers (read x, write out) forward, 8 FLOPs and three transfers (read x
and gradient, write gradient) backward; memory-bound on every machine, so GB/s is what to compare.
Numerics: mean square, scaling and both reductions in float32 whatever the inputs; the normalised value is
rounded to x's dtype before the weight multiplies it, as transformers does.
Triton: a program holds whole rows, several if they are short (q and k norms), one if long; up to 16,384
elements. Compiled for sm_80 and sm_90 without spills up to 8,192; at 16,384 the backward spills 128 bytes a
thread. Native: C++ and OpenMP over rows, float32 and bfloat16 (summed in float32). Measured so far on CPUs
only.
"""

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
