"""Addition by torch, then the native path of `rms_norm`, float32 and bfloat16."""

from torch import Tensor

from sprout.kernels.rms_norm.native import rms_norm


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [..., H], weight [H] -> (normalised, total), each [..., H]."""
    total = x + residual
    return rms_norm(total, weight, eps), total
