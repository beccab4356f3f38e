"""RMSNorm as plain differentiable torch: the specification."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H], weight [H] -> [..., H]."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normalised = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normalised.to(x.dtype)
