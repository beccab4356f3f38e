"""Native CPU path of `rotary` (native.cpp), float32 and bfloat16."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sprout.kernels import _native
from sprout.kernels.arrays import array


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q [R, Hq, D], k [R, Hkv, D], cos and sin [R, D/2] -> (q, k) rotated."""
    cos, sin = cos.to(torch.float32), sin.to(torch.float32)
    if not torch.is_grad_enabled():
        return _rotate(q, cos, sin, 1), _rotate(k, cos, sin, 1)
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
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _native.rotary(array(x), array(cos), array(sin), array(out), direction, torch.get_num_threads())
    return out
