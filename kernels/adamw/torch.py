"""AdamW through torch's fused kernel: one pass over memory instead of one per operation."""

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
    steps = torch.tensor(float(step), device=params[0].device)
    for param, grad, mean, square in zip(params, grads, exp_avg, exp_avg_sq, strict=True):
        # The fused kernel walks raw memory and would write a scaled gradient back, so it gets its own copy.
        own = grad.to(param.dtype).contiguous()
        torch._fused_adamw_(
            [param],
            [own if grad_scale == 1.0 else own * grad_scale],
            [mean],
            [square],
            [],
            [steps],
            lr=lr,
            beta1=betas[0],
            beta2=betas[1],
            weight_decay=weight_decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
        )
