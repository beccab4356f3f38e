"""Triton path of `policy_loss`: every term and the slope of every token in one pass over the vectors.

A second kernel, of one program, adds the blocks' sums in rising order. The gradient is known when the value
is, so backward is one multiplication.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sprout.kernels.launch import Blocks
from sprout.kernels.policy_loss.terms import RATIO_CLAMP, RHO_CLAMP, PolicyLossCoefficients, PolicyLossTerms
from sprout.kernels.policy_loss.torch import KnownGradient

TOKENS, TOTALS = Blocks({"BLOCK": 256}), Blocks()


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
    loss, terms, slope, entropy_slope = loss_and_slopes(
        logprob.detach(),
        old_logprob=old_logprob,
        advantage=advantage,
        weight=weight,
        ref_logprob=ref_logprob,
        skill_logprob=skill_logprob,
        opd_weight=opd_weight,
        entropy=entropy,
        coefficients=coefficients,
    )
    return KnownGradient.apply(logprob, entropy, loss, slope, entropy_slope), terms


def loss_and_slopes(
    logprob: Tensor,
    *,
    old_logprob: Tensor | None,
    advantage: Tensor,
    weight: Tensor,
    ref_logprob: Tensor | None,
    skill_logprob: Tensor | None,
    opd_weight: Tensor | None,
    entropy: Tensor | None,
    coefficients: PolicyLossCoefficients,
) -> tuple[Tensor, PolicyLossTerms, Tensor, Tensor | None]:
    """The loss, its terms, d(loss)/d(logprob) [M], and d(loss)/d(entropy) [M] if it is not 0 everywhere."""
    c = coefficients
    weights = weight.float().contiguous()
    taught = weights if opd_weight is None else opd_weight.float().contiguous()
    per_token = (logprob, old_logprob, advantage, ref_logprob, skill_logprob, entropy)
    M, device = len(logprob), logprob.device
    ratio, k3, delta, gate, slope = torch.empty(5, M, dtype=torch.float32, device=device)
    clipped = torch.empty(M, dtype=torch.bool, device=device)
    blocks = triton.cdiv(M, TOKENS["BLOCK"])
    partial = torch.empty(5, blocks, dtype=torch.float32, device=device)
    sums = torch.empty(6, dtype=torch.float32, device=device)
    if M > 0:
        _tokens[(blocks,)](
            *(None if x is None else x.detach().contiguous() for x in per_token),
            weights,
            taught,
            ratio,
            clipped,
            k3,
            delta,
            gate,
            slope,
            partial,
            M,
            blocks,
            *map(float, (c.clip_low, c.clip_high, c.dual_clip, c.kl, c.opd, c.beta, c.opd_center)),
            *map(float, (c.skill_kl, c.k3_clamp, RATIO_CLAMP, RHO_CLAMP)),
            **TOKENS.launch(),
        )
    coefficient = map(float, (c.kl, c.entropy, c.opd, c.skill_kl))
    _totals[(1,)](partial, sums, blocks, *coefficient, **TOTALS.launch())
    loss, *scalars = sums
    entropy_slope = -c.entropy * weights if c.entropy != 0 else None
    return loss, PolicyLossTerms(ratio, clipped, k3, delta, gate, *scalars), slope, entropy_slope


@triton.jit
def _tokens(
    logprob_ptr,  # [M], as are all that follow; None where the input is absent
    old_ptr,
    advantage_ptr,
    ref_ptr,
    skill_ptr,
    entropy_ptr,
    weight_ptr,  # float32
    opd_weight_ptr,  # float32
    ratio_ptr,
    clipped_ptr,
    k3_ptr,
    delta_ptr,
    gate_ptr,
    slope_ptr,
    partial_ptr,  # [5, blocks] pg, kl, entropy, opd, skill_kl
    M,
    blocks,
    clip_low,
    clip_high,
    dual_clip,
    kl,
    opd,
    beta,
    opd_center,
    skill_kl,
    k3_clamp,
    ratio_clamp,
    rho_clamp,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    m = block * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + m, m < M, other=0.0)
    taught = tl.load(opd_weight_ptr + m, m < M, other=0.0)

    # Clipped policy gradient.
    policy = _at(logprob_ptr, m, weight, M)
    gain = -_at(advantage_ptr, m, weight, M)
    log_ratio = tl.zeros_like(policy)
    if old_ptr is not None:
        log_ratio = policy - _at(old_ptr, m, weight, M)
    ratio = tl.exp(_clamp(log_ratio, -ratio_clamp, ratio_clamp))
    unclipped = gain * ratio
    clipped = gain * _clamp(ratio, 1 - clip_low, 1 + clip_high)
    # dual_clip may be infinite, so it is multiplied by no advantage of 0.
    ceiling = tl.where(gain > 0, gain, 1.0) * dual_clip
    surrogate = tl.where(clipped > unclipped, clipped, unclipped)
    too_high = (gain > 0) & (surrogate > ceiling)
    cut = (clipped > unclipped) | too_high | (tl.abs(log_ratio) > ratio_clamp)
    pg = tl.where(too_high, ceiling, surrogate)
    slope = tl.where(cut, 0.0, weight * unclipped)

    # KL to the reference policy, entropy bonus.
    k3 = tl.zeros_like(policy)
    if ref_ptr is not None:
        k3, k3_slope = _k3(_at(ref_ptr, m, weight, M) - policy, k3_clamp)
        slope += tl.where(kl != 0, kl * (weight * k3_slope), 0.0)
    bonus = tl.zeros_like(policy)
    if entropy_ptr is not None:
        bonus = _at(entropy_ptr, m, weight, M)

    # Distillation from the skill-augmented context.
    delta = tl.zeros_like(policy)
    skill_term = tl.zeros_like(policy)
    if skill_ptr is not None:
        student = _at(logprob_ptr, m, taught, M)
        delta = _at(skill_ptr, m, taught, M) - student
        rho = tl.full([BLOCK], 1.0, tl.float32)
        if old_ptr is not None:
            rho = tl.exp(_clamp(student - _at(old_ptr, m, taught, M), -rho_clamp, rho_clamp))
        skill_k3, skill_slope = _k3(delta, k3_clamp)
        skill_term = rho * skill_k3
    gate = 1.0 / (1.0 + tl.exp(-beta * delta))
    pull = gate - opd_center
    if skill_ptr is not None:
        slope += tl.where(opd != 0, -opd * (taught * pull), 0.0)
        slope += tl.where(skill_kl != 0, skill_kl * (taught * rho * skill_slope), 0.0)

    tl.store(ratio_ptr + m, ratio, m < M)
    tl.store(clipped_ptr + m, cut, m < M)
    tl.store(k3_ptr + m, k3, m < M)
    tl.store(delta_ptr + m, delta, m < M)
    tl.store(gate_ptr + m, gate, m < M)
    tl.store(slope_ptr + m, slope, m < M)
    tl.store(partial_ptr + block, tl.sum(weight * pg, 0))
    tl.store(partial_ptr + blocks + block, tl.sum(weight * k3, 0))
    tl.store(partial_ptr + 2 * blocks + block, tl.sum(weight * bonus, 0))
    tl.store(partial_ptr + 3 * blocks + block, tl.sum(taught * (pull * delta), 0))
    tl.store(partial_ptr + 4 * blocks + block, tl.sum(taught * skill_term, 0))


@triton.jit
def _at(x_ptr, m, weight, M):
    """float32 values of tokens `m`; 0 where their weight is 0, whatever they hold."""
    value = tl.load(x_ptr + m, m < M, other=0.0).to(tl.float32)
    return tl.where(weight != 0, value, 0.0)


@triton.jit
def _k3(d, clamp):
    """exp(d) - d - 1 with d clamped, and its derivative with respect to -d: 0 where the clamp acts."""
    inside = tl.abs(d) <= clamp
    d = _clamp(d, -clamp, clamp)
    # Near 0 the difference would cancel, so there it is its Taylor polynomial; both agree to 1e-7 at 0.5.
    series = d * d * (1 / 2 + d * (1 / 6 + d * (1 / 24 + d * (1 / 120 + d * (1 / 720 + d * (1 / 5040))))))
    k3 = tl.where(tl.abs(d) < 0.5, series, tl.exp(d) - 1 - d)
    return k3, tl.where(inside, -(k3 + d), 0.0)


@triton.jit
def _clamp(x, lowest, highest):
    """Bounds x; unlike with tl.maximum, NaN stays NaN on every device."""
    return tl.where(x > highest, highest, tl.where(x < lowest, lowest, x))


@triton.jit
def _totals(partial_ptr, sums_ptr, blocks, kl, entropy, opd, skill_kl):
    """Sums of the five terms, and before them the loss."""
    term = tl.arange(0, 8)
    sums = tl.zeros([8], tl.float32)
    for block in range(0, blocks):
        sums += tl.load(partial_ptr + term * blocks + block, term < 5, other=0.0)
    coefficient = tl.where(term == 0, 1.0, tl.where(term == 1, kl, tl.where(term == 2, -entropy, 0.0)))
    coefficient = tl.where(term == 3, opd, tl.where(term == 4, skill_kl, coefficient))
    tl.store(sums_ptr, tl.sum(tl.where(coefficient != 0, coefficient * sums, 0.0), 0))
    tl.store(sums_ptr + 1 + term, sums, term < 5)
