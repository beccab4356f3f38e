"""Addition and RMSNorm as plain differentiable torch: the specification."""

from torch import Tensor

from sprout.kernels.rms_norm.reference import rms_norm


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [..., H], weight [H] -> (normalised, total), each [..., H]."""
    total = x + residual
    return rms_norm(total, weight, eps), total
