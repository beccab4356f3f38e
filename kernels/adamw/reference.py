"""AdamW as plain torch, tensor by tensor: the specification."""

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def adamw_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    grad_scale: float,
) -> None:
    """Changes params, exp_avg and exp_avg_sq in place."""
    for param, grad, mean, square in zip(params, grads, exp_avg, exp_avg_sq, strict=True):
        scaled = grad.to(param.dtype) * grad_scale
        mean.mul_(betas[0]).add_(scaled, alpha=1 - betas[0])
        square.mul_(betas[1]).addcmul_(scaled, scaled, value=1 - betas[1])
        corrected_mean = mean / (1 - betas[0] ** step)
        corrected_square = square / (1 - betas[1] ** step)
        param.mul_(1 - lr * weight_decay).sub_(lr * corrected_mean / (corrected_square.sqrt() + eps))
