"""The loop over vocabulary tiles that the native and the torch path share: GEMMs, an epilogue after each.

Forward keeps, per token, the running maximum m of the logits z, the sum of exp(z - m) and (for the entropy)
the sum of exp(z - m) * (z - m). Backward recomputes each tile's logits and takes probabilities from the saved
maximum and sum, so that a tile of `weight`'s gradient is one GEMM, summed in float32 and written once.
Besides inputs and gradients it holds a few tiles of TILE_BYTES, and the selected hidden rows where they are
gathered or upcast.

On CUDA the GEMMs take half-precision operands and give float32. torch has no such GEMM for the CPU, and
logits rounded to bfloat16 would cost three digits of the log-prob: there the GEMMs of the logits take
operands that were upcast tile by tile. The two GEMMs of the gradients may round, since `weight`'s gradient is
rounded once anyway and `hidden`'s is summed over tiles in float32. They stay in bfloat16 where the CPU
multiplies it in hardware (AVX512-BF16: about twice as fast as float32; torch without it: up to 16 times
slower), unless tokens are few: no sum evens out the rounding of d(logits) there, and the GEMMs are cheap. The
CPU's capability decides, not a measurement, so that a run repeats bit for bit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE_BYTES = 16 * 2**20
NARROWEST_TILE = 128
FEW_TOKENS = 32


@dataclass(frozen=True)
class Running:
    """Of the logits z seen so far, per token ([M] each); an epilogue's `fold` updates it in place."""

    logit: Tensor  # z at the target
    peak: Tensor  # maximum
    mass: Tensor  # sum of exp(z - peak)
    moment: Tensor  # sum of exp(z - peak) * (z - peak); only kept for the entropy

    @classmethod
    def empty(cls, tokens: int, dtype: torch.dtype, device: torch.device) -> "Running":
        """Half the lowest number as peak: finite, so the first rescaling makes the empty sums 0, not NaN."""
        logit, mass, moment = torch.zeros(3, tokens, dtype=dtype, device=device)
        return cls(logit, torch.full_like(logit, torch.finfo(dtype).min / 2), mass, moment)


@dataclass(frozen=True)
class Upstream:
    """What backward knows about the tokens that have an upstream gradient: [M] each.

    With e = exp(z - peak), so that p = e / mass, a token's d(logits) is slope at its target, minus
    e * (constant + entropy_slope * (z - peak)).
    """

    target: Tensor
    temperature: float | Tensor
    peak: Tensor
    slope: Tensor
    constant: Tensor
    entropy_slope: Tensor | None

    @classmethod
    def gather(
        cls,
        target: Tensor,
        temperature: float | Tensor,
        peak: Tensor,
        mass: Tensor,
        d_logprob: Tensor | None,
        entropy: Tensor | None,
        d_entropy: Tensor | None,
    ) -> "tuple[Upstream, Tensor]":
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
        per_token = (target, temperature, peak, slope, constant, entropy_slope)
        return cls(*(x[live] if isinstance(x, Tensor) else x for x in per_token)), live  # type: ignore[arg-type]


@dataclass(frozen=True)
class Epilogue:
    """What a backend does to a tile of logits [M, columns], whose first column is token id `start`.

    The logits are a scratch buffer in the results' precision, not yet divided by the temperature.
    """

    # (logits, start, target, temperature, running, with_entropy): brings `running` up to date
    fold: Callable[[Tensor, int, Tensor, float | Tensor, Running, bool], None]
    # (logits, start, tokens, dtype) -> gradient of the GEMM's output in dtype
    d_logits: Callable[[Tensor, int, Upstream, torch.dtype], Tensor]


def tiled_logprob(
    hidden: Tensor,
    weight: Tensor,
    row: Tensor,
    target: Tensor,
    temperature: float | Tensor,
    with_entropy: bool,
    epilogue: Epilogue,
) -> tuple[Tensor, Tensor | None]:
    """`sprout.kernels.selected_logprob` with a backend's epilogue."""
    if isinstance(temperature, Tensor):
        temperature = temperature.detach().to(_wide(hidden))
    logprob, entropy = _TiledLogprob.apply(hidden, weight, row, target, temperature, with_entropy, epilogue)
    return logprob, entropy


class _TiledLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [N, H]
        weight: Tensor,  # [V, H]
        row: Tensor,  # [M]
        target: Tensor,  # [M]
        temperature: float | Tensor,
        with_entropy: bool,
        epilogue: Epilogue,
    ) -> tuple[Tensor, Tensor | None]:
        seen = Running.empty(len(target), _wide(hidden), hidden.device)
        rows = _logits_operand(_selected(hidden, row))
        for tile in _tiles(rows, weight):
            logits = _matmul(rows, weight[tile].to(rows.dtype).T)
            epilogue.fold(logits, tile.start, target, temperature, seen, with_entropy)
        entropy = seen.mass.log() - seen.moment / seen.mass if with_entropy else None
        per_token = temperature if isinstance(temperature, Tensor) else None
        ctx.save_for_backward(hidden, weight, row, target, seen.peak, seen.mass, entropy, per_token)
        ctx.temperature = temperature if per_token is None else None
        ctx.epilogue = epilogue
        ctx.set_materialize_grads(False)
        # In this order the large peak cancels exactly before the small logarithm is subtracted.
        return (seen.logit - seen.peak) - seen.mass.log(), entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_logprob: Tensor | None, d_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None, None]:
        hidden, weight, row, target, peak, mass, entropy, per_token = ctx.saved_tensors
        temperature = ctx.temperature if per_token is None else per_token
        tokens, live = Upstream.gather(target, temperature, peak, mass, d_logprob, entropy, d_entropy)
        row = row[live]
        rows = _selected(hidden, row)
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        d_rows = torch.zeros(rows.shape, dtype=peak.dtype, device=rows.device) if wants_hidden else None
        d_weight = torch.empty_like(weight) if wants_weight else None
        _backward(rows, weight, tokens, ctx.epilogue, d_rows, d_weight)
        d_hidden = None if d_rows is None else _scatter(d_rows, row, hidden)
        return d_hidden, d_weight, None, None, None, None, None


def _backward(
    selected: Tensor,  # [M, H]
    weight: Tensor,  # [V, H]
    tokens: Upstream,
    epilogue: Epilogue,
    d_rows: Tensor | None,  # [M, H] accumulator
    d_weight: Tensor | None,  # [V, H] every element is written
) -> None:
    rows = _logits_operand(selected)
    gradient_dtype = _gradient_dtype(selected)
    gradient_rows = selected.to(gradient_dtype) if gradient_dtype != rows.dtype else rows
    for tile in _tiles(rows, weight):
        columns = weight[tile].to(rows.dtype)
        logits = _matmul(rows, columns.T)
        d_logits = epilogue.d_logits(logits, tile.start, tokens, gradient_dtype)
        if d_rows is not None and d_rows.dtype == gradient_dtype:
            d_rows.addmm_(d_logits, columns)
        elif d_rows is not None:
            d_rows += _matmul(d_logits, weight[tile])
        if d_weight is not None:
            d_weight[tile] = _matmul(d_logits.T, gradient_rows)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b if a.dtype == _wide(a) or not a.is_cuda else torch.mm(a, b, out_dtype=_wide(a))


def _tiles(rows: Tensor, weight: Tensor) -> Iterator[slice]:
    """Vocabulary slices whose logits [M, columns] and weights [columns, H] stay within TILE_BYTES."""
    widest = max(1, *rows.shape) * _wide(rows).itemsize
    columns = max(NARROWEST_TILE, TILE_BYTES // widest)
    for start in range(0, weight.shape[0], columns):
        yield slice(start, min(start + columns, weight.shape[0]))


def _selected(hidden: Tensor, row: Tensor) -> Tensor:
    """Selected rows [M, H]; not a copy where they are all rows in order."""
    return hidden if _is_identity(row, hidden) else hidden[row]


def _logits_operand(rows: Tensor) -> Tensor:
    """`rows` in the dtype that the GEMM of the logits takes."""
    return rows if rows.is_cuda else rows.to(_wide(rows))


def _gradient_dtype(rows: Tensor) -> torch.dtype:
    """The dtype of the GEMMs that give the gradients."""
    if rows.is_cuda:
        return rows.dtype
    fast = rows.dtype == torch.bfloat16 and multiplies_bfloat16() and len(rows) > FEW_TOKENS
    return rows.dtype if fast else _wide(rows)


@cache
def multiplies_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices in hardware."""
    return torch.cpu._is_avx512_bf16_supported()


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
