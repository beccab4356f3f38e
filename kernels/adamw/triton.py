"""Triton path of `adamw_`: one launch for many tensors, found through a table of addresses."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from sprout.kernels.launch import Blocks, Table, choose

TABLE: Table = {
    "sm80": {"all": Blocks({"TENSORS": 256, "BLOCK": 4096}, warps=8)},
    "interpreter": {"all": Blocks({"TENSORS": 4, "BLOCK": 64})},
}
GRADIENT_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
# Loads of 16 bytes need addresses that are multiples of it.
ALIGNMENT = 16
NO_BLOCK = 2**62

Columns = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class _Step:
    """The scalars of one step, worked out in double precision."""

    decay: float
    step_size: float
    square_scale: float
    beta1: float
    beta2: float
    rest1: float
    rest2: float
    eps: float
    grad_scale: float


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
    scalars = _Step(
        decay=1 - lr * weight_decay,
        step_size=lr / (1 - betas[0] ** step),
        square_scale=(1 - betas[1] ** step) ** -0.5,
        beta1=float(betas[0]),
        beta2=float(betas[1]),
        rest1=1.0 - betas[0],
        rest2=1.0 - betas[1],
        eps=float(eps),
        grad_scale=float(grad_scale),
    )
    blocks = choose(TABLE, params[0].device, "all")
    by_type: dict[torch.dtype, list[Columns]] = defaultdict(list)
    for param, grad, mean, square in zip(params, grads, exp_avg, exp_avg_sq, strict=True):
        known = grad if grad.dtype in GRADIENT_TYPES else grad.float()
        if param.numel():
            by_type[known.dtype].append((param, known.contiguous(), mean, square))
    for dtype, tensors in by_type.items():
        for first in range(0, len(tensors), blocks["TENSORS"]):
            _launch(tensors[first : first + blocks["TENSORS"]], dtype, scalars, blocks)


def _launch(tensors: list[Columns], dtype: torch.dtype, step: _Step, blocks: Blocks) -> None:
    device = tensors[0][0].device
    addresses = [[x.data_ptr() for x in column] for column in zip(*tensors, strict=True)]
    sizes = [param.numel() for param, *_ in tensors]
    first, total = [], 0
    for size in sizes:
        first.append(total)
        total += triton.cdiv(size, blocks["BLOCK"])
    table = torch.full((6, blocks["TENSORS"]), NO_BLOCK, dtype=torch.int64, pin_memory=device.type == "cuda")
    table[:, : len(tensors)] = torch.tensor([*addresses, sizes, first])
    _adamw[(total,)](
        table.to(device, non_blocking=True),
        step.decay,
        step.step_size,
        step.square_scale,
        step.beta1,
        step.beta2,
        step.rest1,
        step.rest2,
        step.eps,
        step.grad_scale,
        GRADIENT=GRADIENT_TYPES[dtype],
        ALIGNED=all(address % ALIGNMENT == 0 for column in addresses for address in column),
        **blocks.launch(),
    )


@triton.jit
def _adamw(
    table_ptr,  # [6, TENSORS] int64: addresses of params, grads, exp_avg, exp_avg_sq; sizes; first blocks
    decay,
    step_size,
    square_scale,
    beta1,
    beta2,
    rest1,
    rest2,
    eps,
    grad_scale,
    GRADIENT: tl.constexpr,
    ALIGNED: tl.constexpr,
    TENSORS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    first = tl.load(table_ptr + 5 * TENSORS + tl.arange(0, TENSORS))
    own_ptr = table_ptr + tl.sum((first <= block).to(tl.int32)) - 1
    size = tl.load(own_ptr + 4 * TENSORS)
    start = (block - tl.load(own_ptr + 5 * TENSORS)) * BLOCK
    param_ptr = _pointer(own_ptr, tl.float32, ALIGNED)
    grad_ptr = _pointer(own_ptr + TENSORS, GRADIENT, ALIGNED)
    mean_ptr = _pointer(own_ptr + 2 * TENSORS, tl.float32, ALIGNED)
    square_ptr = _pointer(own_ptr + 3 * TENSORS, tl.float32, ALIGNED)
    offset = tl.multiple_of(start, BLOCK) + tl.arange(0, BLOCK)
    if start + BLOCK <= size:
        # A mask whose end is unknown keeps loads from being 16 bytes wide, so whole blocks go without.
        mask = tl.full((BLOCK,), True, tl.int1)
        _update(
            *(param_ptr + offset, grad_ptr + offset, mean_ptr + offset, square_ptr + offset, mask),
            *(decay, step_size, square_scale, beta1, beta2, rest1, rest2, eps, grad_scale),
        )
    else:
        _update(
            *(param_ptr + offset, grad_ptr + offset, mean_ptr + offset, square_ptr + offset, offset < size),
            *(decay, step_size, square_scale, beta1, beta2, rest1, rest2, eps, grad_scale),
        )


@triton.jit
def _pointer(address_ptr, TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """The pointer that is stored at address_ptr."""
    pointer = tl.load(address_ptr).to(tl.pointer_type(TYPE))
    return tl.multiple_of(pointer, 16) if ALIGNED else pointer


@triton.jit
def _update(
    param_ptr,
    grad_ptr,
    mean_ptr,
    square_ptr,
    mask,
    decay,
    step_size,
    square_scale,
    beta1,
    beta2,
    rest1,
    rest2,
    eps,
    grad_scale,
):
    grad = tl.load(grad_ptr, mask, other=0.0).to(tl.float32) * grad_scale
    mean = tl.load(mean_ptr, mask, other=0.0) * beta1 + grad * rest1
    square = tl.load(square_ptr, mask, other=0.0) * beta2 + grad * grad * rest2
    param = tl.load(param_ptr, mask, other=0.0) * decay
    param -= step_size * mean / (tl.sqrt_rn(square) * square_scale + eps)
    tl.store(mean_ptr, mean, mask)
    tl.store(square_ptr, square, mask)
    tl.store(param_ptr, param, mask)
