"""Backward of `selected_logprob` in Triton: d(logits) are formed again, tile by tile, in one of two modes.

- "recompute": one kernel per gradient, which multiplies d(logits) on the chip. Nothing of [tokens,
  vocabulary] exists; 8 M V H operations, if a program can hold all H columns of its result.
- "workspace": a kernel writes d(logits) of all tokens and some columns of the vocabulary into
  WORKSPACE_BYTES, and cuBLAS multiplies it from there: 6 M V H operations.

In both d(logits) is rounded to the inputs' dtype, as tensor cores want it, and summed in float32.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import triton
from torch import Tensor

from sprout.kernels.launch import Blocks, choose, interpreting
from sprout.kernels.selected_logprob.triton_backward_kernels import (
    d_logits_kernel,
    d_rows_kernel,
    d_weight_kernel,
    sum_rows_kernel,
)
from sprout.kernels.selected_logprob.triton_blocks import TABLE

WORKSPACE_BYTES = 256 * 2**20
NARROWEST_WORKSPACE = 256  # columns, whatever the number of tokens: at H > 256 no larger than the hidden rows
# H, by element size, up to which forming the logits again is cheaper than moving d(logits); one program of
# the recompute mode can hold as many columns of its result.
WIDEST_RECOMPUTE = {2: 256, 4: 64}
HALF_SCALE = 2.0**12  # what the largest slope is scaled to in float16, where p / tokens would underflow
WIDEST_ROW = 1024  # columns per program where rows are summed


def backward_mode(H: int, itemsize: int) -> Literal["recompute", "workspace"]:
    """How backward multiplies d(logits): see the head of this file."""
    widest = WIDEST_RECOMPUTE[itemsize]
    return "recompute" if widest >= H else "workspace"


@dataclass(frozen=True)
class Upstream:
    """Upstream gradients in the form that d(logits) needs.

    With e = exp(z - peak), so that p = e / mass, a token's d(logits) is slope at its target, minus
    e * (constant + entropy_slope * (z - peak)).
    """

    packed: Tensor  # [4 or 5, M]: 1 / temperature, peak, slope, constant, and entropy_slope if there is one
    alive: Tensor  # [M] bool: the token has an upstream gradient
    unscale: Tensor  # [1]: power of two that undoes the scale of slope, constant and entropy_slope

    @classmethod
    def of(
        cls,
        inverse_temperature: Tensor,
        peak: Tensor,
        mass: Tensor,
        d_logprob: Tensor | None,
        entropy: Tensor | None,
        d_entropy: Tensor | None,
        dtype: torch.dtype,
    ) -> "Upstream":
        slope = torch.zeros_like(peak) if d_logprob is None else d_logprob * inverse_temperature
        steepness = slope.abs()
        if entropy is not None and d_entropy is not None:
            entropy_slope = d_entropy * inverse_temperature
            # |p (log p + entropy)| stays below 16 for any vocabulary.
            steepness = torch.maximum(steepness, 16 * entropy_slope.abs())
        scale = _scale(steepness, dtype)
        columns = [inverse_temperature, peak, slope * scale, slope * scale / mass]
        if entropy is not None and d_entropy is not None:
            columns.append(entropy_slope * scale / mass)
            columns[3] = columns[3] + columns[4] * (entropy - mass.log())
        alive = steepness != 0
        # Statistics of a token without upstream may be NaN; its slopes must be 0 all the same.
        packed = torch.where(alive, torch.stack(columns), 0.0)
        return cls(packed, alive, 1.0 / scale)

    @property
    def with_entropy(self) -> bool:
        return len(self.packed) == 5


def _scale(steepness: Tensor, dtype: torch.dtype) -> Tensor:
    """The power of two [1] that lifts d(logits) out of float16's underflow; 1 in wider dtypes."""
    if dtype != torch.float16 or steepness.numel() == 0:
        return torch.ones(1, dtype=torch.float32, device=steepness.device)
    largest = steepness.amax().clamp(1e-30, 1e30)
    return torch.exp2((HALF_SCALE / largest).log2().floor()).reshape(1)


def backward(
    hidden: Tensor,
    weight: Tensor,
    row: Tensor,
    target: Tensor,
    upstream: Upstream,
    wants_hidden: bool,
    wants_weight: bool,
    logits: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """d(hidden) and d(weight), those that are wanted; `logits` [M, V], if given, are not formed again."""
    if len(row) == 0:
        none = torch.zeros_like(hidden), torch.zeros_like(weight)
        return none[0] if wants_hidden else None, none[1] if wants_weight else None
    rows = hidden[row].masked_fill_(~upstream.alive[:, None], 0)
    d_rows = torch.empty(rows.shape, dtype=torch.float32, device=rows.device) if wants_hidden else None
    d_weight = torch.empty(weight.shape, dtype=weight.dtype, device=rows.device) if wants_weight else None
    if logits is None and backward_mode(weight.shape[1], weight.itemsize) == "recompute":
        _recompute(rows, weight, target.contiguous(), upstream, d_rows, d_weight)
    else:
        _workspace(rows, weight, target.contiguous(), upstream, logits, d_rows, d_weight)
    return None if d_rows is None else _sum_rows(d_rows, row, len(hidden), upstream, hidden.dtype), d_weight


def _recompute(
    rows: Tensor,  # [M, H]
    weight: Tensor,  # [V, H]
    target: Tensor,  # [M]
    upstream: Upstream,
    d_rows: Tensor | None,  # [M, H]
    d_weight: Tensor | None,  # [V, H]
) -> None:
    (M, H), V = rows.shape, len(weight)
    out = min(WIDEST_RECOMPUTE[rows.itemsize], max(16, triton.next_power_of_2(H)))
    sizes = dict(H=H, OUT=out, WITH_ENTROPY=upstream.with_entropy, INTERPRET=interpreting())
    inputs = rows, weight, target, upstream.packed
    if d_rows is not None:
        blocks = choose(TABLE, rows.device, ("d_rows", rows.itemsize))
        grid = (triton.cdiv(M, blocks["BLOCK_M"]) * triton.cdiv(H, out),)
        d_rows_kernel[grid](*inputs, d_rows, M, V, *weight.stride(), **sizes, **blocks.launch())
    if d_weight is not None:
        blocks = choose(TABLE, rows.device, ("d_weight", rows.itemsize))
        grid = (triton.cdiv(V, blocks["BLOCK_V"]) * triton.cdiv(H, out),)
        d_weight_kernel[grid](
            *inputs, upstream.unscale, d_weight, M, V, *weight.stride(), **sizes, **blocks.launch()
        )


def _workspace(
    rows: Tensor,  # [M, H]
    weight: Tensor,  # [V, H]
    target: Tensor,  # [M]
    upstream: Upstream,
    logits: Tensor | None,  # [M, V]
    d_rows: Tensor | None,  # [M, H]
    d_weight: Tensor | None,  # [V, H]
) -> None:
    (M, H), V = rows.shape, len(weight)
    blocks = choose(TABLE, rows.device, ("d_logits", rows.itemsize))
    columns = max(NARROWEST_WORKSPACE, WORKSPACE_BYTES // (M * rows.itemsize) // 256 * 256)
    # Rows start at multiples of 16 elements whatever V is, so that stores are wide and take few registers.
    stride = triton.cdiv(min(columns, V), 16) * 16
    workspace = torch.empty(M, stride, dtype=rows.dtype, device=rows.device)
    for start in range(0, V, columns):
        width = min(columns, V - start)
        grid = (triton.cdiv(M, blocks["BLOCK_M"]) * triton.cdiv(width, blocks["BLOCK_V"]),)
        d_logits_kernel[grid](
            rows,
            weight,
            logits,
            target,
            upstream.packed,
            workspace,
            M,
            V,
            start,
            width,
            stride,
            *weight.stride(),
            H=H,
            WITH_ENTROPY=upstream.with_entropy,
            INTERPRET=interpreting(),
            **blocks.launch(),
        )
        gradient, tile = workspace[:, :width], slice(start, start + width)
        if d_rows is not None:
            product = matmul(gradient, weight[tile])
            d_rows.copy_(product) if start == 0 else d_rows.add_(product)
        if d_weight is not None:
            torch.mul(matmul(gradient.T, rows), upstream.unscale, out=d_weight[tile])


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b summed and returned in float32; CPU tensors (the interpreter's) need operands that wide."""
    if a.dtype == torch.float32 or a.device.type == "cpu":
        return torch.mm(a.float(), b.float())
    return torch.mm(a, b, out_dtype=torch.float32)


def _sum_rows(d_rows: Tensor, row: Tensor, N: int, upstream: Upstream, dtype: torch.dtype) -> Tensor:
    """Gradient [N, H] of the hidden rows from those of the tokens [M, H]."""
    H = d_rows.shape[1]
    ordered, order = row.sort(stable=True)
    bounds = torch.searchsorted(ordered, torch.arange(N + 1, device=row.device))
    d_hidden = torch.empty(N, H, dtype=dtype, device=row.device)
    blocks = Blocks({"BLOCK_H": min(WIDEST_ROW, triton.next_power_of_2(H))})
    sum_rows_kernel[(N * triton.cdiv(H, blocks["BLOCK_H"]),)](
        d_rows, order, bounds, upstream.unscale, d_hidden, H=H, **blocks.launch()
    )
    return d_hidden
