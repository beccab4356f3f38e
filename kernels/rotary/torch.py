"""Rotary embedding written straight into its output; the backward rotates the other way."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q [R, Hq, D], k [R, Hkv, D], cos and sin [R, D/2] -> (q, k) rotated."""
    rotated: tuple[Tensor, Tensor] = _Rotary.apply(q, k, cos, sin)
    return rotated


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        ctx.set_materialize_grads(False)
        return _rotate(q, cos, sin, 1), _rotate(k, cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_q: Tensor | None, grad_k: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        cos, sin = ctx.saved_tensors
        grads = [None if grad is None else _rotate(grad, cos, sin, -1) for grad in (grad_q, grad_k)]
        return grads[0], grads[1], None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    """x [R, H, D] turned by +angle or -angle."""
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos.to(wide).unsqueeze(1), sin.to(wide).unsqueeze(1)
    half = x.shape[-1] // 2
    source = x.to(wide)
    out = torch.empty(x.shape, dtype=wide, device=x.device)
    torch.mul(source[..., :half], cos, out=out[..., :half]).addcmul_(
        source[..., half:], sin, value=-direction
    )
    torch.mul(source[..., half:], cos, out=out[..., half:]).addcmul_(source[..., :half], sin, value=direction)
    return out.to(x.dtype)
