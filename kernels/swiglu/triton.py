"""Triton path of `swiglu`: elementwise over blocks of rows and columns, two kernels."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from sprout.kernels.launch import Blocks, Table, choose

TABLE: Table = {
    "sm80": {
        "narrow": Blocks({"ROWS": 16, "COLUMNS": 128}, warps=4),
        "wide": Blocks({"ROWS": 1, "COLUMNS": 2048}, warps=8),
    },
    "interpreter": {
        "narrow": Blocks({"ROWS": 4, "COLUMNS": 32}),
        "wide": Blocks({"ROWS": 8, "COLUMNS": 64}),
    },
}
NARROW = 512


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """gate, up [R, I] -> [R, I]."""
    out: Tensor = _SwiGLU.apply(gate, up)
    return out


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        out = torch.empty_like(gate, memory_format=torch.contiguous_format)
        _launch(_forward, (gate, up), (out,))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad_gate = torch.empty_like(gate, memory_format=torch.contiguous_format)
        grad_up = torch.empty_like(grad_gate)
        _launch(_backward, (gate, up, grad), (grad_gate, grad_up))
        return grad_gate, grad_up


def _launch(kernel: Any, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    matrices = [_rows(x) for x in inputs]
    rows, columns = matrices[0].shape
    blocks = choose(TABLE, inputs[0].device, "narrow" if columns <= NARROW else "wide")
    grid = (triton.cdiv(rows, blocks["ROWS"]) * triton.cdiv(columns, blocks["COLUMNS"]),)
    strides = (x.stride(0) for x in matrices)
    kernel[grid](*matrices, *outputs, *strides, rows, columns, **blocks.launch())


def _rows(x: Tensor) -> Tensor:
    """[..., I] as a matrix with contiguous rows; shares memory where it can."""
    matrix = x.reshape(-1, x.shape[-1])
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()


@triton.jit
def _forward(
    gate_ptr,  # [rows, columns]
    up_ptr,  # [rows, columns]
    out_ptr,  # [rows, columns], contiguous
    gate_stride,
    up_stride,
    rows,
    columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row, column, mask = _block(rows, columns, ROWS, COLUMNS)
    dtype = out_ptr.dtype.element_ty
    gate = tl.load(gate_ptr + row * gate_stride + column, mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + column, mask, other=0.0).to(tl.float32)
    activated = (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32)
    tl.store(out_ptr + row * columns + column, (activated * up).to(dtype), mask)


@triton.jit
def _backward(
    gate_ptr,  # [rows, columns]
    up_ptr,  # [rows, columns]
    grad_ptr,  # [rows, columns]
    grad_gate_ptr,  # [rows, columns], contiguous
    grad_up_ptr,  # [rows, columns], contiguous
    gate_stride,
    up_stride,
    grad_stride,
    rows,
    columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row, column, mask = _block(rows, columns, ROWS, COLUMNS)
    dtype = grad_gate_ptr.dtype.element_ty
    gate = tl.load(gate_ptr + row * gate_stride + column, mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + column, mask, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + row * grad_stride + column, mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    # silu'(g) = s (1 + g (1 - s)), with s = sigmoid(g)
    grad_gate = grad * up * sigmoid * (1 + gate * (1 - sigmoid))
    tl.store(grad_gate_ptr + row * columns + column, grad_gate.to(dtype), mask)
    tl.store(grad_up_ptr + row * columns + column, (grad * gate * sigmoid).to(dtype), mask)


@triton.jit
def _block(rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows [ROWS, 1] (int64) and columns [1, COLUMNS] of this program, and which of them exist."""
    across = tl.cdiv(columns, COLUMNS)
    program = tl.program_id(0)
    row = (program // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = (program % across) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return row, column, (row < rows) & (column < columns)
