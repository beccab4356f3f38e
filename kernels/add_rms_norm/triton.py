"""Triton path of `add_rms_norm`: the kernels of `rms_norm` with a residual."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sprout.kernels.rms_norm.triton import backward, forward


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [..., H], weight [H] -> (normalised, total), each [..., H]."""
    both: tuple[Tensor, Tensor] = _AddRMSNorm.apply(x, residual, weight, eps)
    return both


class _AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor | None]:
        normalised, total, inverse_rms = forward(x, residual, weight, eps)
        ctx.save_for_backward(total, weight, inverse_rms)
        ctx.set_materialize_grads(False)
        return normalised, total

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor | None, grad_total: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        if grad is None:
            return grad_total, grad_total, None, None
        total, weight, inverse_rms = ctx.saved_tensors
        grad_x, grad_weight = backward(grad, grad_total, total, weight, inverse_rms, ctx.needs_input_grad[2])
        return grad_x, grad_x, grad_weight, None
