"""The gated activation of the feed-forward block."""

from torch import Tensor

from sprout.kernels.dispatch import resolve


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020, arXiv 2002.05202, eq. 6), elementwise.

    Differentiable in both; the backward saves gate and up only and recomputes the activation. Each factor is
    rounded to the input dtype, as in the Hugging Face decoders.

    Args:
        gate, up: [R, I] (any equal shape), any strides (halves of a fused projection are fine).

    Returns:
        The same shape and dtype.

    Raises:
        ValueError: the shapes or dtypes differ.
    """
    if gate.shape != up.shape or gate.dtype != up.dtype:
        raise ValueError(
            f"swiglu: gate {list(gate.shape)} {gate.dtype} and up {list(up.shape)} {up.dtype} must be alike"
        )
    activated: Tensor = resolve("swiglu", gate)(gate, up)
    return activated
