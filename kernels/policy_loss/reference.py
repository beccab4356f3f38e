"""Specification of `policy_loss`: the formulas in eager torch, differentiated by autograd."""

import torch
from torch import Tensor

from sprout.kernels.policy_loss.terms import RATIO_CLAMP, RHO_CLAMP, PolicyLossCoefficients, PolicyLossTerms


def policy_loss(
    logprob: Tensor,
    *,
    old_logprob: Tensor | None,
    advantage: Tensor,
    weight: Tensor,
    ref_logprob: Tensor | None = None,
    skill_logprob: Tensor | None = None,
    opd_weight: Tensor | None = None,
    entropy: Tensor | None = None,
    coefficients: PolicyLossCoefficients,
) -> tuple[Tensor, PolicyLossTerms]:
    """See `sprout.kernels.policy_loss`."""
    c = coefficients
    wide = torch.promote_types(logprob.dtype, torch.float32)
    w = weight.detach().to(wide)
    u = w if opd_weight is None else opd_weight.detach().to(wide)

    def at(weights: Tensor, x: Tensor | None) -> Tensor:
        """`x`, or the policy's own log-prob if absent; 0 at tokens of weight 0, whatever they hold."""
        return torch.where(weights != 0, logprob if x is None else x, 0).to(wide)

    policy, old, ref = at(w, logprob), at(w, old_logprob).detach(), at(w, ref_logprob).detach()
    A = at(w, advantage).detach()
    log_ratio = policy - old
    ratio = log_ratio.clamp(-RATIO_CLAMP, RATIO_CLAMP).exp()
    unclipped, clipped = -A * ratio, -A * ratio.clamp(1 - c.clip_low, 1 + c.clip_high)
    surrogate = torch.where(clipped > unclipped, clipped, unclipped)
    too_high = (A < 0) & (surrogate > -A * c.dual_clip)
    pg = (w * torch.where(too_high, -A * c.dual_clip, surrogate)).sum()
    k3 = _k3(policy, ref, c.k3_clamp)
    kl = (w * k3).sum()
    bonus = w.new_zeros(()) if entropy is None else (w * at(w, entropy)).sum()

    student, sampler, skill = at(u, logprob), at(u, old_logprob).detach(), at(u, skill_logprob).detach()
    delta = skill - student.detach()
    gate = torch.sigmoid(c.beta * delta)
    opd = (u * (gate - c.opd_center) * (skill - student)).sum()
    rho = (student.detach() - sampler).clamp(-RHO_CLAMP, RHO_CLAMP).exp()
    skill_kl = (u * rho * _k3(student, skill, c.k3_clamp)).sum()

    loss = pg
    for coefficient, term in ((c.kl, kl), (-c.entropy, bonus), (c.opd, opd), (c.skill_kl, skill_kl)):
        if coefficient != 0:
            loss = loss + coefficient * term
    cut = (clipped > unclipped) | too_high | (log_ratio.abs() > RATIO_CLAMP)
    scalars = (x.detach() for x in (pg, kl, bonus, opd, skill_kl))
    return loss, PolicyLossTerms(ratio.detach(), cut, k3.detach(), delta, gate, *scalars)


def _k3(logprob: Tensor, other: Tensor, clamp: float) -> Tensor:
    """Unbiased, non-negative estimate of KL(policy || other) from one sample (Schulman's k3)."""
    d = (other - logprob).clamp(-clamp, clamp)
    return torch.expm1(d) - d
