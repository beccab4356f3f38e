"""Plain-torch path of `selected_logprob`: a loop over vocabulary tiles.

Forward keeps, per token, the running maximum m of the logits z, the sum of exp(z - m) and (for the entropy)
the sum of exp(z - m) * (z - m). Backward recomputes each tile's logits and takes probabilities from the saved
maximum and sum, so that a tile of `weight`'s gradient is one GEMM, summed in float32 and written once.
Besides inputs and gradients it holds a few tiles of TILE_BYTES, and the selected hidden rows where they are
gathered or upcast.

On the CPU half-precision operands are upcast tile by tile: torch has no CPU GEMM from bfloat16 to float32,
and logits rounded to bfloat16 would cost three digits of the log-prob. On CUDA the GEMMs take half-precision
operands and give float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE_BYTES = 16 * 2**20
NARROWEST_TILE = 128


def selected_logprob(
    hidden: Tensor,
    weight: Tensor,
    row: Tensor,
    target: Tensor,
    temperature: float | Tensor = 1.0,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """See `sprout.kernels.selected_logprob`."""
    if isinstance(temperature, Tensor):
        temperature = temperature.detach().to(_wide(hidden))
    logprob, entropy = _SelectedLogprob.apply(hidden, weight, row, target, temperature, with_entropy)
    return logprob, entropy


class _SelectedLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [N, H]
        weight: Tensor,  # [V, H]
        row: Tensor,  # [M]
        target: Tensor,  # [M]
        temperature: float | Tensor,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        logit, peak, mass, entropy = _forward(
            _operand(hidden, row), weight, target, temperature, with_entropy
        )
        per_token = temperature if isinstance(temperature, Tensor) else None
        ctx.save_for_backward(hidden, weight, row, target, peak, mass, entropy, per_token)
        ctx.temperature = temperature if per_token is None else None
        ctx.set_materialize_grads(False)
        # In this order the large peak cancels exactly before the small logarithm is subtracted.
        return (logit - peak) - mass.log(), entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_logprob: Tensor | None, d_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        hidden, weight, row, target, peak, mass, entropy, per_token = ctx.saved_tensors
        temperature = ctx.temperature if per_token is None else per_token
        tokens, live = _Upstream.gather(target, peak, mass, temperature, d_logprob, entropy, d_entropy)
        row = row[live]
        rows = _operand(hidden, row)
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        d_rows = torch.zeros(rows.shape, dtype=peak.dtype, device=rows.device) if wants_hidden else None
        d_weight = torch.empty_like(weight) if wants_weight else None
        _backward(rows, weight, tokens, d_rows, d_weight)
        d_hidden = None if d_rows is None else _scatter(d_rows, row, hidden)
        return d_hidden, d_weight, None, None, None, None


@dataclass(frozen=True)
class _Upstream:
    """What backward knows about the tokens that have an upstream gradient: [M] each.

    With e = exp(z - peak), so that p = e / mass, a token's d(logits) is slope at its target, minus
    e * (constant + entropy_slope * (z - peak)).
    """

    target: Tensor
    peak: Tensor
    temperature: float | Tensor
    slope: Tensor
    constant: Tensor
    entropy_slope: Tensor | None

    @classmethod
    def gather(
        cls,
        target: Tensor,
        peak: Tensor,
        mass: Tensor,
        temperature: float | Tensor,
        d_logprob: Tensor | None,
        entropy: Tensor | None,
        d_entropy: Tensor | None,
    ) -> "tuple[_Upstream, Tensor]":
        """The tokens with a gradient and their indices.

        The others cost nothing, and garbage in their hidden rows stays out of the GEMMs.
        """
        slope = (torch.zeros_like(peak) if d_logprob is None else d_logprob) / temperature
        constant, entropy_slope, alive = slope / mass, None, slope != 0
        if entropy is not None and d_entropy is not None:
            entropy_slope = d_entropy / temperature / mass
            constant = constant + entropy_slope * (entropy - mass.log())
            alive = alive | (d_entropy != 0)
        live = alive.nonzero().squeeze(1)
        per_token = (target, peak, temperature, slope, constant, entropy_slope)
        return cls(*(x[live] if isinstance(x, Tensor) else x for x in per_token)), live  # type: ignore[arg-type]


def _forward(
    rows: Tensor,  # [M, H]
    weight: Tensor,  # [V, H]
    target: Tensor,  # [M]
    temperature: float | Tensor,
    with_entropy: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Target logit, peak logit, sum of exp(z - peak), and entropy (None unless asked for): [M] each."""
    wide = _wide(rows)
    # Half the lowest number: finite, so the first rescaling multiplies empty sums by exp(very negative) = 0.
    peak = torch.full(target.shape, torch.finfo(wide).min / 2, dtype=wide, device=rows.device)
    logit, mass, moment = (torch.zeros_like(peak) for _ in range(3))
    for tile in _tiles(rows, weight):
        z = _logits(rows, weight[tile].to(rows.dtype), temperature)
        column, inside = _locate(target - tile.start, z.shape[1])
        logit = torch.where(inside, z.gather(1, column).squeeze(1), logit)
        new_peak = torch.maximum(peak, z.amax(dim=1))
        shift, peak = peak - new_peak, new_peak
        z.sub_(peak[:, None])
        if with_entropy:
            e = z.exp()
            moment = shift.exp() * (moment + mass * shift) + z.mul_(e).sum(dim=1)
        else:
            e = z.exp_()
        mass = shift.exp() * mass + e.sum(dim=1)
    return logit, peak, mass, mass.log() - moment / mass if with_entropy else None


def _backward(
    rows: Tensor,  # [M, H]
    weight: Tensor,  # [V, H]
    tokens: _Upstream,
    d_rows: Tensor | None,  # [M, H] accumulator
    d_weight: Tensor | None,  # [V, H] every element is written
) -> None:
    for tile in _tiles(rows, weight):
        columns = weight[tile].to(rows.dtype)
        logits = _logits(rows, columns, tokens.temperature)
        d_logits = _d_logits(logits, tokens, tile.start).to(rows.dtype)
        if d_rows is not None and d_rows.dtype == rows.dtype:
            d_rows.addmm_(d_logits, columns)
        elif d_rows is not None:
            d_rows += _matmul(d_logits, columns)
        if d_weight is not None:
            d_weight[tile] = _matmul(d_logits.T, rows)


def _d_logits(logits: Tensor, tokens: _Upstream, start: int) -> Tensor:
    """Gradient [M, columns] of the GEMM's output for the tile from `start`; overwrites `logits`."""
    z = logits.sub_(tokens.peak[:, None])
    if tokens.entropy_slope is None:
        d_logits = z.exp_().mul_(-tokens.constant[:, None])
    else:
        e = z.exp()
        d_logits = z.mul_(-tokens.entropy_slope[:, None]).sub_(tokens.constant[:, None]).mul_(e)
    column, inside = _locate(tokens.target - start, d_logits.shape[1])
    at_target = d_logits.gather(1, column) + torch.where(inside, tokens.slope, 0)[:, None]
    return d_logits.scatter_(1, column, at_target)


def _logits(rows: Tensor, columns: Tensor, temperature: float | Tensor) -> Tensor:
    logits = _matmul(rows, columns.T)
    if isinstance(temperature, Tensor):
        return logits.div_(temperature[:, None])
    return logits if temperature == 1 else logits.div_(temperature)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b if a.dtype == _wide(a) else torch.mm(a, b, out_dtype=_wide(a))


def _locate(target: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Column [M, 1] of each tile-relative target, clamped into the tile, and whether [M] it lies there."""
    column = target.clamp(0, columns - 1)
    return column[:, None], column == target


def _tiles(rows: Tensor, weight: Tensor) -> Iterator[slice]:
    """Vocabulary slices whose logits [M, columns] and weights [columns, H] stay within TILE_BYTES."""
    widest = max(1, *rows.shape) * _wide(rows).itemsize
    columns = max(NARROWEST_TILE, TILE_BYTES // widest)
    for start in range(0, weight.shape[0], columns):
        yield slice(start, min(start + columns, weight.shape[0]))


def _operand(hidden: Tensor, row: Tensor) -> Tensor:
    """Selected rows [M, H] in the dtype the GEMMs take; not a copy where they are all rows in order."""
    rows = hidden if _is_identity(row, hidden) else hidden[row]
    return rows if hidden.is_cuda else rows.to(_wide(hidden))


def _scatter(d_rows: Tensor, row: Tensor, hidden: Tensor) -> Tensor:
    """Sum row gradients [M, H] into [N, H]; index_put_ adds repeated rows in a fixed order on CUDA too."""
    if _is_identity(row, hidden):
        return d_rows.to(hidden.dtype)
    total = torch.zeros(hidden.shape, dtype=d_rows.dtype, device=d_rows.device)
    return total.index_put_((row,), d_rows, accumulate=True).to(hidden.dtype)


def _is_identity(row: Tensor, hidden: Tensor) -> bool:
    """Whether `row` is 0..N-1; never asked on CUDA, where the answer would wait for the device."""
    if row.is_cuda or row.shape[0] != hidden.shape[0]:
        return False
    return torch.equal(row, torch.arange(row.shape[0]))


def _wide(tensor: Tensor) -> torch.dtype:
    """Precision of sums and results: float32, or float64 for float64."""
    return torch.promote_types(tensor.dtype, torch.float32)
