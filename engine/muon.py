"""Muon: momentum, orthogonalised by Newton-Schulz iterations, for the 2-D matrices of the layers.

Same update as `torch.optim.Muon` (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/), with two
differences that matter on a CPU: the iterations run in the matrices' own precision there (bf16 matmul without
bf16 units is twenty times slower than fp32), and matrices of one shape are orthogonalised in one batch.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch

# Quintic coefficients with the steepest slope at 0 that still keeps singular values within about [0.7, 1.2].
QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrix: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Approximate U V^T of matrix = U S V^T; `matrix` is [..., M, N], the result has its shape and dtype."""
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    a, b, c = QUINTIC
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrix.dtype)


@torch.no_grad()
def muon_(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    momentum: Sequence[torch.Tensor],
    *,
    lr: float,
    beta: float,
    weight_decay: float,
    grad_scale: float = 1.0,
) -> None:
    """One in-place Muon step on matrices [M, N] with Nesterov momentum and decoupled weight decay.

    The update of a matrix is scaled by sqrt(max(1, M / N)), as in the original. `grad_scale` multiplies the
    gradients first (clipping).
    """
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, (grad, buffer) in enumerate(zip(grads, momentum, strict=True)):
        buffer.lerp_(grad * grad_scale, 1 - beta)
        by_shape[tuple(grad.shape)].append(index)
    for (rows, columns), indices in by_shape.items():
        nesterov = [(grads[i] * grad_scale).lerp(momentum[i], beta) for i in indices]
        scale = lr * math.sqrt(max(1.0, rows / columns))
        for index, update in zip(indices, orthogonalize(torch.stack(nesterov)), strict=True):
            params[index].mul_(1 - lr * weight_decay).add_(update, alpha=-scale)
