"""Plain-torch path of `policy_loss`: value and gradient in one pass, no graph of intermediate tensors.

Every term's derivative with respect to a token's log-prob is one scalar, and their sum c is the whole
backward: d(loss)/d(logprob) = c and d(loss)/d(entropy) = -entropy_coef * weight.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
    with torch.no_grad():
        rl = _Weighted(logprob, weight)
        taught = rl if opd_weight is None else _Weighted(logprob, opd_weight)
        ratio, clipped, pg, slope = _policy_gradient(rl, old_logprob, advantage, c)
        k3, k3_slope = rl.k3(ref_logprob, c.k3_clamp)
        kl = rl.total(k3)
        bonus = rl.weight.new_zeros(()) if entropy is None else rl.total(rl.keep(entropy))
        delta, gate, opd, skill_kl, skill_slope = _distillation(taught, old_logprob, skill_logprob, c)
        slope += skill_slope
        if c.kl != 0:
            slope += c.kl * rl.weight * k3_slope
        scaled = ((c.kl, kl), (-c.entropy, bonus), (c.opd, opd), (c.skill_kl, skill_kl))
        loss = pg + sum(coefficient * term for coefficient, term in scaled if coefficient != 0)
        entropy_slope = -c.entropy * rl.weight if c.entropy != 0 else None
    terms = PolicyLossTerms(ratio, clipped, k3, delta, gate, pg, kl, bonus, opd, skill_kl)
    return KnownGradient.apply(logprob, entropy, loss, slope, entropy_slope), terms


class KnownGradient(torch.autograd.Function):
    """A scalar whose gradient with respect to `logprob` and `entropy` has been computed along with it."""

    @staticmethod
    def forward(
        ctx: Any,
        logprob: Tensor,
        entropy: Tensor | None,
        loss: Tensor,
        slope: Tensor,  # [M]
        entropy_slope: Tensor | None,  # [M]
    ) -> Tensor:
        ctx.save_for_backward(slope, entropy_slope)
        ctx.dtypes = logprob.dtype, None if entropy is None else entropy.dtype
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        slope, entropy_slope = ctx.saved_tensors
        logprob_dtype, entropy_dtype = ctx.dtypes
        d_entropy = None if entropy_slope is None else (upstream * entropy_slope).to(entropy_dtype)
        return (upstream * slope).to(logprob_dtype), d_entropy, None, None, None


class _Weighted:
    """The policy's log-probs [M] and their weights; tokens of weight 0 read as 0 whatever they hold."""

    def __init__(self, logprob: Tensor, weight: Tensor) -> None:
        self.weight = weight.to(torch.promote_types(logprob.dtype, torch.float32))
        self.alive = self.weight != 0
        self.logprob = self.keep(logprob)

    def keep(self, x: Tensor) -> Tensor:
        return torch.where(self.alive, x, 0).to(self.weight.dtype)

    def total(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()

    def importance(self, old: Tensor | None, clamp: float) -> tuple[Tensor, Tensor]:
        """exp(logprob - old) and where its exponent had to be clamped; exactly 1 without `old`."""
        if old is None:
            return torch.ones_like(self.logprob), torch.zeros_like(self.alive)
        log_ratio = self.logprob - self.keep(old)
        return log_ratio.clamp(-clamp, clamp).exp_(), log_ratio.abs() > clamp

    def k3(self, other: Tensor | None, clamp: float) -> tuple[Tensor, Tensor]:
        """k3(logprob, other) and its derivative, both 0 without `other`."""
        if other is None:
            return torch.zeros_like(self.logprob), torch.zeros_like(self.logprob)
        d = self.keep(other) - self.logprob
        inside = d.abs() <= clamp
        d.clamp_(-clamp, clamp)
        growth = torch.expm1(d)
        return growth - d, torch.where(inside, -growth, 0)


def _policy_gradient(
    rl: _Weighted, old_logprob: Tensor | None, advantage: Tensor, c: PolicyLossCoefficients
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ratio [M], whether a clip cut the gradient [M], the weighted sum, and its slope [M]."""
    gain = -rl.keep(advantage)
    ratio, too_far = rl.importance(old_logprob, RATIO_CLAMP)
    unclipped, clipped = gain * ratio, gain * ratio.clamp(1 - c.clip_low, 1 + c.clip_high)
    surrogate = torch.maximum(unclipped, clipped)
    too_high = (gain > 0) & (surrogate > gain * c.dual_clip)
    cut = (clipped > unclipped) | too_high | too_far
    surrogate = torch.where(too_high, gain * c.dual_clip, surrogate)
    return ratio, cut, rl.total(surrogate), torch.where(cut, 0, rl.weight * unclipped)


def _distillation(
    taught: _Weighted, old_logprob: Tensor | None, skill_logprob: Tensor | None, c: PolicyLossCoefficients
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Delta [M], gate [M], the weighted sums of opd and skill_kl, and the slope [M] of their contribution."""
    if skill_logprob is None:
        delta, zero = torch.zeros_like(taught.logprob), taught.weight.new_zeros(())
        return delta, torch.sigmoid(delta), zero, zero, torch.zeros_like(delta)
    delta = taught.keep(skill_logprob) - taught.logprob
    gate = torch.sigmoid(c.beta * delta)
    pull = gate - c.opd_center
    rho, _ = taught.importance(old_logprob, RHO_CLAMP)
    k3, k3_slope = taught.k3(skill_logprob, c.k3_clamp)
    slope = -c.opd * (taught.weight * pull) if c.opd != 0 else torch.zeros_like(delta)
    if c.skill_kl != 0:
        slope += c.skill_kl * (taught.weight * rho * k3_slope)
    return delta, gate, taught.total(pull * delta), taught.total(rho * k3), slope
