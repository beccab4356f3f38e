"""Composition of the ops `selected_logprob` and `policy_loss`, whatever backends they run on."""

import torch
from torch import Tensor

from sprout.kernels.paired_logprob_loss import PairedLogprobs
from sprout.kernels.paired_logprob_loss.teacher import teacher_logprob
from sprout.kernels.policy_loss import PolicyLossCoefficients, policy_loss
from sprout.kernels.selected_logprob import selected_logprob


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
    student, entropy = selected_logprob(hidden, weight, row, target, temperature, with_entropy=True)
    assert entropy is not None
    skill = torch.full_like(student, torch.nan) if skill_logprob is None else skill_logprob
    teacher = teacher_logprob(hidden, weight, row, target, scored, teacher_row, temperature, student)
    skill = torch.where(teacher_row < 0, skill, teacher)
    loss, terms = policy_loss(
        student,
        old_logprob=old_logprob,
        advantage=advantage,
        weight=token_weight,
        ref_logprob=ref_logprob,
        skill_logprob=skill,
        opd_weight=opd_weight,
        entropy=entropy,
        coefficients=coefficients,
    )
    return loss, PairedLogprobs(student.detach(), skill, entropy.detach(), terms)
