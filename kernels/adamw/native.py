"""Native CPU path of `adamw_` (native.cpp): float32 weights; bfloat16 gradients are read as they are."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sprout.kernels import _native
from sprout.kernels.arrays import array


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
    batches: dict[torch.dtype, list[tuple[Tensor, ...]]] = {}
    for param, grad, mean, square in zip(params, grads, exp_avg, exp_avg_sq, strict=True):
        own = grad if grad.dtype == torch.bfloat16 else grad.float()
        batches.setdefault(own.dtype, []).append((param, own, mean, square))
    for batch in batches.values():
        flat = ([array(x.reshape(-1)) for x in tensors] for tensors in zip(*batch, strict=True))
        _native.adamw(*flat, *betas, step, lr, eps, weight_decay, grad_scale, torch.get_num_threads())
