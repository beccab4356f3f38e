"""Native CPU path of `selected_logprob` (native.cpp): the epilogue of the shared tile loop in one pass over
each tile of float32 logits; the loop upcasts half-precision operands."""

import torch
from torch import Tensor

from sprout.kernels import _native
from sprout.kernels.arrays import array
from sprout.kernels.selected_logprob.tiles import Epilogue, Running, Upstream, tiled_logprob


def selected_logprob(
    hidden: Tensor,
    weight: Tensor,
    row: Tensor,
    target: Tensor,
    temperature: float | Tensor = 1.0,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """See `sprout.kernels.selected_logprob`."""
    return tiled_logprob(hidden, weight, row, target, temperature, with_entropy, Epilogue(_fold, _d_logits))


def _fold(
    logits: Tensor,
    start: int,
    target: Tensor,
    temperature: float | Tensor,
    seen: Running,
    with_entropy: bool,
) -> None:
    per_token = (target, _per_token(temperature, target), seen.logit, seen.peak, seen.mass, seen.moment)
    _native.selected_logprob_fold(
        array(logits), start, *map(array, per_token), with_entropy, torch.get_num_threads()
    )


def _d_logits(logits: Tensor, start: int, tokens: Upstream, dtype: torch.dtype) -> Tensor:
    out = logits if dtype == logits.dtype else torch.empty_like(logits, dtype=dtype)
    entropy_slope = torch.zeros_like(tokens.slope) if tokens.entropy_slope is None else tokens.entropy_slope
    per_token = (
        tokens.target,
        _per_token(tokens.temperature, tokens.target),
        tokens.peak,
        tokens.slope,
        tokens.constant,
        entropy_slope,
    )
    _native.selected_logprob_d_logits(
        array(logits), start, *map(array, per_token), array(out), torch.get_num_threads()
    )
    return out


def _per_token(temperature: float | Tensor, target: Tensor) -> Tensor:
    if isinstance(temperature, Tensor):
        return temperature
    return torch.full(target.shape, temperature, dtype=torch.float32)
