"""Rotary embedding as plain differentiable torch: the specification."""

import torch
from torch import Tensor


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q [R, Hq, D], k [R, Hkv, D], cos and sin [R, D/2] -> (q, k) rotated."""
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    first, second = x.to(wide).chunk(2, dim=-1)
    cos, sin = cos.detach().to(wide)[:, None], sin.detach().to(wide)[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
