"""Linear layers through torch's matrix products, in a precision that the processor multiplies fast.

A CPU without units for bfloat16 (float16) multiplies it three to six times slower than float32. There the
operands become float32, a block of the weight at a time, and the product is rounded back. Nothing else
changes: products of two bfloat16 numbers are exact in float32 and sums are kept in it, as such units do;
weights, gradients and what is kept between the passes stay in bfloat16.

Everywhere else this is `torch.nn.functional.linear`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 2**20  # elements of the weight that are float32 at a time: 4 MB, near enough to a core
UNITS = {  # what a CPU that multiplies the dtype itself calls it, on x86 and ARM
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "avx10_2", "bf16"),
    torch.float16: ("avx512_fp16", "amx_fp16", "avx10_2", "fp16_arith"),
}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [R, in], weight [out, in], bias [out] -> x W^T + bias [R, out], all in the dtype of x."""
    if x.device.type != "cpu" or multiplies(x.dtype):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return _forward(x, weight, bias)
    out: Tensor = _Upcast.apply(x, weight, bias)
    return out


@cache
def multiplies(dtype: torch.dtype) -> bool:
    """Whether this CPU has units for products in `dtype`."""
    found = torch.cpu.get_capabilities()
    return dtype not in UNITS or any(found.get(name, False) for name in UNITS[dtype])


class _Upcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _forward(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        wide = grad.float()
        return (
            _grad_input(wide, weight).to(x.dtype) if of_x else None,
            _grad_weight(wide, x, weight) if of_weight else None,
            wide.sum(0).to(weight.dtype) if of_bias else None,
        )


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out, wide = x.new_empty(len(x), len(weight)), x.float()
    for rows in _blocks(weight):
        transposed = weight[rows].float().T
        if bias is None:
            out[:, rows] = wide @ transposed
        else:
            out[:, rows] = torch.addmm(bias[rows].float(), wide, transposed)
    return out


def _grad_input(grad: Tensor, weight: Tensor) -> Tensor:
    total = grad.new_zeros(len(grad), weight.shape[1])
    for rows in _blocks(weight):
        total.addmm_(grad[:, rows], weight[rows].float())
    return total


def _grad_weight(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    out, wide = torch.empty_like(weight), x.float()
    for rows in _blocks(weight):
        out[rows] = grad[:, rows].T @ wide
    return out


def _blocks(weight: Tensor) -> Iterator[slice]:
    """Ranges of the weight's rows."""
    height = max(1, BLOCK // weight.shape[1])
    return (slice(start, start + height) for start in range(0, len(weight), height))
