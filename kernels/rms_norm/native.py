"""Native CPU path of `rms_norm` (native.cpp), float32."""

from typing import Any

import torch
from sprout.kernels import _native
from sprout.kernels.arrays import rows, vector
from torch import Tensor
from torch.autograd.function import once_differentiable

# Rows whose weight gradients are summed one after the other, before the sums are added up.
SHARE = 128


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H], weight [H] -> [..., H]."""
    out: Tensor = _RMSNorm.apply(x, weight, eps)
    return out


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, inverse_rms = torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape[:-1], dtype=x.dtype)
        _native.rms_norm_forward(
            rows(x), vector(weight), eps, rows(out), vector(inverse_rms), torch.get_num_threads()
        )
        ctx.save_for_backward(x, weight, inverse_rms)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse_rms = ctx.saved_tensors
        grad_x = torch.empty(x.shape, dtype=x.dtype)
        shares = torch.empty(inverse_rms.numel() // SHARE + 1, x.shape[-1])
        _native.rms_norm_backward(
            rows(grad),
            rows(x),
            vector(weight),
            vector(inverse_rms),
            rows(grad_x),
            rows(shares),
            torch.get_num_threads(),
        )
        return grad_x, shares.sum(0), None
