"""Plain-torch path of `selected_logprob`: the epilogue of the shared tile loop as one torch call per step."""

import torch
from torch import Tensor

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
    z = _tempered(logits, temperature)
    column, inside = _locate(target - start, z.shape[1])
    seen.logit.copy_(torch.where(inside, z.gather(1, column).squeeze(1), seen.logit))
    new_peak = torch.maximum(seen.peak, z.amax(dim=1))
    shift = seen.peak - new_peak
    seen.peak.copy_(new_peak)
    z.sub_(new_peak[:, None])
    if with_entropy:
        e = z.exp()
        seen.moment.copy_(shift.exp() * (seen.moment + seen.mass * shift) + z.mul_(e).sum(dim=1))
    else:
        e = z.exp_()
    seen.mass.mul_(shift.exp_()).add_(e.sum(dim=1))


def _d_logits(logits: Tensor, start: int, tokens: Upstream, dtype: torch.dtype) -> Tensor:
    z = _tempered(logits, tokens.temperature).sub_(tokens.peak[:, None])
    if tokens.entropy_slope is None:
        d_logits = z.exp_().mul_(-tokens.constant[:, None])
    else:
        e = z.exp()
        d_logits = z.mul_(-tokens.entropy_slope[:, None]).sub_(tokens.constant[:, None]).mul_(e)
    column, inside = _locate(tokens.target - start, d_logits.shape[1])
    at_target = d_logits.gather(1, column) + torch.where(inside, tokens.slope, 0)[:, None]
    return d_logits.scatter_(1, column, at_target).to(dtype)


def _tempered(logits: Tensor, temperature: float | Tensor) -> Tensor:
    if isinstance(temperature, Tensor):
        return logits.div_(temperature[:, None])
    return logits if temperature == 1 else logits.div_(temperature)


def _locate(target: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """Column [M, 1] of each tile-relative target, clamped into the tile, and whether [M] it lies there."""
    column = target.clamp(0, columns - 1)
    return column[:, None], column == target
