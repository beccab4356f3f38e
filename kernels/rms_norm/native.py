"""Native CPU path of `rms_norm` (native.cpp), float32 and bfloat16."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sprout.kernels import _native
from sprout.kernels.arrays import array, parameter, rows

# Rows whose weight gradients are summed one after the other, before the sums are added up.
SHARE = 128


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H], weight [H] -> [..., H]."""
    if not torch.is_grad_enabled():
        return _forward(x, weight, eps)[0]
    out: Tensor = _RMSNorm.apply(x, weight, eps)
    return out


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, inverse_rms = _forward(x, weight, eps)
        ctx.save_for_backward(x, weight, inverse_rms)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse_rms = ctx.saved_tensors
        grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
        shares = inverse_rms.new_empty(len(inverse_rms) // SHARE + 1, x.shape[-1])
        _native.rms_norm_backward(
            rows(grad),
            rows(x),
            parameter(weight),
            array(inverse_rms),
            rows(grad_x),
            rows(shares),
            torch.get_num_threads(),
        )
        return grad_x, shares.sum(0).to(weight.dtype), None


def _forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised x, and 1 / rms of its rows, flattened."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    matrix = rows(x)
    inverse_rms = torch.empty(len(matrix))
    _native.rms_norm_forward(
        matrix, parameter(weight), eps, rows(out), array(inverse_rms), torch.get_num_threads()
    )
    return out, inverse_rms
