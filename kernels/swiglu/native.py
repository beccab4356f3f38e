"""Native CPU path of `swiglu` (native.cpp), float32 and bfloat16."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sprout.kernels import _native
from sprout.kernels.arrays import rows


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """gate, up [R, I] -> [R, I]."""
    if not torch.is_grad_enabled():
        return _forward(gate, up)
    out: Tensor = _SwiGLU.apply(gate, up)
    return out


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return _forward(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grads = _empty(gate), _empty(gate)
        _native.swiglu_backward(*(rows(x) for x in (grad, gate, up, *grads)), torch.get_num_threads())
        return grads


def _forward(gate: Tensor, up: Tensor) -> Tensor:
    out = _empty(gate)
    _native.swiglu_forward(rows(gate), rows(up), rows(out), torch.get_num_threads())
    return out


def _empty(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)
