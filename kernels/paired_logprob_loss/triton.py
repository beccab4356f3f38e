"""Triton path of `paired_logprob_loss`, built of the kernels of its parts.

Student and teacher tokens are scored in one launch; blocks of tokens without a teacher of their own are
passed over. Then come the loss, its slopes, and the gradients. Nothing waits for the device.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sprout.kernels.paired_logprob_loss import PairedLogprobs
from sprout.kernels.policy_loss.terms import PolicyLossCoefficients
from sprout.kernels.policy_loss.triton import loss_and_slopes
from sprout.kernels.selected_logprob.triton import inverse_of, score
from sprout.kernels.selected_logprob.triton_backward import Upstream, backward

KEPT_BYTES = 2 * 2**30  # of the student's logits; more tokens form them again
NARROWEST_KEPT = 640  # H below which forming logits again is cheaper than writing and reading them


def paired_logprob_loss(
    hidden: Tensor,
    weight: Tensor,
    row: Tensor,
    target: Tensor,
    *,
    scored: Tensor | None = None,
    teacher_row: Tensor,
    temperature: float | Tensor = 1.0,
    old_logprob: Tensor | None,
    advantage: Tensor,
    token_weight: Tensor,
    opd_weight: Tensor | None = None,
    ref_logprob: Tensor | None = None,
    skill_logprob: Tensor | None = None,
    coefficients: PolicyLossCoefficients,
) -> tuple[Tensor, PairedLogprobs]:
    """See `sprout.kernels.paired_logprob_loss`."""
    skill = None if skill_logprob is None else skill_logprob.detach()
    epilogue = partial(
        loss_and_slopes,
        old_logprob=old_logprob,
        advantage=advantage,
        weight=token_weight,
        ref_logprob=ref_logprob,
        opd_weight=opd_weight,
        coefficients=coefficients,
    )
    wants = [torch.is_grad_enabled() and x.requires_grad for x in (hidden, weight)]
    tensors = hidden.detach(), weight.detach(), row, target, scored, teacher_row
    loss, pair, gradients = _loss_and_gradients(*tensors, temperature, skill, epilogue, wants)
    return _KnownGradients.apply(hidden, weight, loss, *gradients), pair


class _KnownGradients(torch.autograd.Function):
    """A scalar whose gradients with respect to `hidden` and `weight` have been computed along with it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [N, H]
        weight: Tensor,  # [V, H]
        loss: Tensor,
        d_hidden: Tensor | None,  # [N, H]
        d_weight: Tensor | None,  # [V, H]
    ) -> Tensor:
        ctx.save_for_backward(d_hidden, d_weight)
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        d_hidden, d_weight = (None if x is None else (upstream * x).to(x.dtype) for x in ctx.saved_tensors)
        return d_hidden, d_weight, None, None, None


def keeps_logits(M: int, V: int, H: int) -> bool:
    """Whether the student's logits are kept from the forward for d(logits), instead of formed again."""
    return H >= NARROWEST_KEPT and 4 * M * V <= KEPT_BYTES


@torch.no_grad()
def _loss_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    row: Tensor,
    target: Tensor,
    scored: Tensor | None,
    teacher_row: Tensor,
    temperature: float | Tensor,
    skill: Tensor | None,
    epilogue: Callable[..., Any],
    wants: list[bool],
) -> tuple[Tensor, PairedLogprobs, tuple[Tensor | None, Tensor | None]]:
    (M,), (V, H) = row.shape, weight.shape
    inverse = inverse_of(temperature, row)
    keep = any(wants) and keeps_logits(M, V, H)
    logits = torch.empty(M, V, dtype=torch.float32, device=row.device) if keep else None
    apart = (teacher_row >= 0) & (teacher_row != row)
    both = score(
        hidden if scored is None else torch.cat([hidden, scored]),
        weight,
        torch.cat([row, torch.where(apart, teacher_row, -1)]),
        target.repeat(2),
        inverse.repeat(2),
        with_entropy=True,
        logits=logits,
    )
    assert both.entropy is not None
    student, teacher = both.logprob[:M], both.logprob[M:]
    entropy, peak, mass = both.entropy[:M], both.peak[:M], both.mass[:M]
    given = torch.full_like(student, torch.nan) if skill is None else skill
    skill = torch.where(teacher_row < 0, given, torch.where(apart, teacher, student))
    loss, terms, slope, entropy_slope = epilogue(student, skill_logprob=skill, entropy=entropy)
    pair = PairedLogprobs(student, skill, entropy, terms)
    if not any(wants):
        return loss, pair, (None, None)
    upstream = Upstream.of(inverse, peak, mass, slope, entropy, entropy_slope, weight.dtype)
    return loss, pair, backward(hidden, weight, row, target, upstream, *wants, logits=logits)
