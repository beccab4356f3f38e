"""Triton path of `rms_norm` and `add_rms_norm`: one program holds whole rows in registers."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from sprout.kernels.launch import Blocks, Table, choose

# By the largest row a program of the class holds. PROGRAMS bounds the grid of the backward, and with it the
# number of partial weight gradients.
TABLE: Table = {
    "sm80": {
        128: Blocks({"ROWS": 16, "PROGRAMS": 1024}, warps=4),
        1024: Blocks({"ROWS": 4, "PROGRAMS": 512}, warps=4),
        8192: Blocks({"ROWS": 1, "PROGRAMS": 256}, warps=8),
        16384: Blocks({"ROWS": 1, "PROGRAMS": 128}, warps=16),
    },
    "interpreter": dict.fromkeys((128, 1024, 8192, 16384), Blocks({"ROWS": 32, "PROGRAMS": 3})),
}
MAX_H = 16384


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H], weight [H] -> [..., H]."""
    out: Tensor = _RMSNorm.apply(x, weight, eps)
    return out


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, _, inverse_rms = forward(x, None, weight, eps)
        ctx.save_for_backward(x, weight, inverse_rms)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, inverse_rms = ctx.saved_tensors
        return *backward(grad, None, x, weight, inverse_rms, ctx.needs_input_grad[1]), None


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The normalised x (+ residual), that sum if there is a residual, and 1 / rms of its rows [rows]."""
    H = x.shape[-1]
    matrix, blocks = _rows(x), _blocks(x)
    added = matrix if residual is None else _rows(residual)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    total = None if residual is None else torch.empty_like(out)
    inverse_rms = torch.empty(len(matrix), dtype=torch.float32, device=x.device)
    _forward[(triton.cdiv(len(matrix), blocks["ROWS"]),)](
        matrix,
        added,
        weight.contiguous(),
        out,
        out if total is None else total,
        inverse_rms,
        matrix.stride(0),
        added.stride(0),
        len(matrix),
        H,
        eps,
        HAS_RESIDUAL=residual is not None,
        COLUMNS=triton.next_power_of_2(H),
        **blocks.launch(),
    )
    return out, total, inverse_rms


def backward(
    grad: Tensor,
    grad_total: Tensor | None,
    total: Tensor,
    weight: Tensor,
    inverse_rms: Tensor,
    needs_weight: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of what was normalised (plus grad_total, if given) and of the weight."""
    H = total.shape[-1]
    matrix, grad, blocks = _rows(total), _rows(grad), _blocks(total)
    added = grad if grad_total is None else _rows(grad_total)
    grad_x = torch.empty_like(total, memory_format=torch.contiguous_format)
    programs = min(triton.cdiv(len(matrix), blocks["ROWS"]), blocks["PROGRAMS"])
    partial = torch.empty(programs if needs_weight else 0, H, dtype=torch.float32, device=total.device)
    _backward[(programs,)](
        grad,
        added,
        matrix,
        weight.contiguous(),
        inverse_rms,
        grad_x,
        partial,
        grad.stride(0),
        added.stride(0),
        matrix.stride(0),
        len(matrix),
        H,
        HAS_RESIDUAL=grad_total is not None,
        NEEDS_WEIGHT=needs_weight,
        COLUMNS=triton.next_power_of_2(H),
        **blocks.launch(),
    )
    return grad_x, partial.sum(0).to(weight.dtype) if needs_weight else None


def _blocks(x: Tensor) -> Blocks:
    H = x.shape[-1]
    if H > MAX_H:
        raise ValueError(f"rms_norm: the Triton kernel takes rows of up to {MAX_H} elements, not {H}")
    return choose(TABLE, x.device, next(bound for bound in TABLE["sm80"] if bound >= H))


def _rows(x: Tensor) -> Tensor:
    """[..., H] as a matrix with contiguous rows; shares memory where it can."""
    matrix = x.reshape(-1, x.shape[-1])
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()


@triton.jit
def _forward(
    x_ptr,  # [rows, H]
    residual_ptr,  # [rows, H]
    weight_ptr,  # [H]
    out_ptr,  # [rows, H]
    total_ptr,  # [rows, H]
    inverse_rms_ptr,  # [rows] float32
    x_stride,
    residual_stride,
    rows,
    H,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows)[:, None] & (column < H)
    out_offset = row[:, None] * H + column
    dtype = out_ptr.dtype.element_ty

    x = tl.load(x_ptr + row[:, None] * x_stride + column, mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + row[:, None] * residual_stride + column, mask, other=0.0).to(tl.float32)
        # What is normalised is the sum that the next layer reads, so it is rounded first.
        x = x.to(dtype).to(tl.float32)
        tl.store(total_ptr + out_offset, x.to(dtype), mask)
    inverse_rms = 1.0 / tl.sqrt_rn(tl.sum(x * x, 1) / H + eps)
    tl.store(inverse_rms_ptr + row, inverse_rms, row < rows)
    weight = tl.load(weight_ptr + column, column < H, other=0.0).to(tl.float32)
    normalised = (x * inverse_rms[:, None]).to(dtype).to(tl.float32)
    tl.store(out_ptr + out_offset, (normalised * weight).to(dtype), mask)


@triton.jit
def _backward(
    grad_ptr,  # [rows, H]
    grad_total_ptr,  # [rows, H]
    x_ptr,  # [rows, H]
    weight_ptr,  # [H]
    inverse_rms_ptr,  # [rows] float32
    grad_x_ptr,  # [rows, H]
    partial_ptr,  # [programs, H] float32: each program's share of d(weight)
    grad_stride,
    grad_total_stride,
    x_stride,
    rows,
    H,
    HAS_RESIDUAL: tl.constexpr,
    NEEDS_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)[None, :]
    weight = tl.load(weight_ptr + column, column < H, other=0.0).to(tl.float32)
    grad_weight = tl.zeros((COLUMNS,), tl.float32)
    # Every program takes each PROGRAMS-th block of rows, in rising order: the sums never change.
    for first in range(program * ROWS, rows, PROGRAMS * ROWS):
        row = first + tl.arange(0, ROWS).to(tl.int64)
        mask = (row < rows)[:, None] & (column < H)
        grad = tl.load(grad_ptr + row[:, None] * grad_stride + column, mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + row[:, None] * x_stride + column, mask, other=0.0).to(tl.float32)
        inverse_rms = tl.load(inverse_rms_ptr + row, row < rows, other=0.0)[:, None]
        normalised = x * inverse_rms
        scaled = grad * weight
        # d(x_i) = (w_i g_i - n_i mean(w g n)) / rms(x), with n = x / rms(x)
        projection = tl.sum(scaled * normalised, 1)[:, None] / H
        grad_x = (scaled - normalised * projection) * inverse_rms
        if HAS_RESIDUAL:
            offset = row[:, None] * grad_total_stride + column
            grad_x += tl.load(grad_total_ptr + offset, mask, other=0.0).to(tl.float32)
        tl.store(grad_x_ptr + row[:, None] * H + column, grad_x.to(grad_x_ptr.dtype.element_ty), mask)
        if NEEDS_WEIGHT:
            grad_weight += tl.sum(grad * normalised, 0)
    if NEEDS_WEIGHT:
        tl.store(partial_ptr + program * H + tl.arange(0, COLUMNS), grad_weight, tl.arange(0, COLUMNS) < H)
