"""The per-token epilogue of SEED: clipped GRPO, KL, entropy bonus and gated on-policy distillation.

Idea: every term's derivative with respect to a token's log-prob is one scalar, so value, statistics and
gradient come out of the same pass, and backward is one multiplication with the upstream scalar.

FLOPs and memory: about 100 operations per token and five [M] vectors; nothing next to the log-probs
themselves. What a fused kernel saves is launches: `triton` has two (one over blocks of 256 tokens, one that
adds the blocks' sums in rising order) where the torch composition has dozens.

Numerics: float32 (float64 for float64 log-probs). Near 0, where exp(d) - 1 - d cancels, the Triton kernel
takes k3 from its Taylor polynomial. NaN in a token of weight 0 is never read; in others it reaches the loss.

Measured: Triton's kernels pass this op's tests in the interpreter and compile for sm_80 and sm_90; no speed
has been measured on a GPU yet.
"""

from torch import Tensor

from sprout.kernels.dispatch import resolve
from sprout.kernels.policy_loss.terms import PolicyLossCoefficients, PolicyLossTerms

__all__ = ["PolicyLossCoefficients", "PolicyLossTerms", "policy_loss"]


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
    """Loss over M sampled tokens, a weighted sum of per-token terms ("SEED", arXiv 2607.14777).

    With ratio = exp(logprob - sg[old]), A the advantage and sg the stop-gradient:

        pg       = max(-A ratio, -A clip(ratio, 1 - clip_low, 1 + clip_high)), at most -A dual_clip where A <
        0 kl       = k3(logprob, ref) = exp(d) - d - 1, d = ref - logprob clamped to +-k3_clamp opd      =
        (gate - opd_center) * (sg[skill] - logprob), gate = sg[sigmoid(beta * (skill - logprob))] skill_kl =
        sg[rho] * k3(logprob, skill), rho = exp(logprob - old)        (Skill-SD) loss     = sum(weight * (pg +
        kl_coef kl - entropy_coef entropy))
                 + sum(opd_weight * (opd_coef opd + skill_kl_coef skill_kl))

    rho is an importance weight and carries no gradient, so k3 alone pulls towards the skill. Exponents are
    bounded so that no finite input overflows: that of `ratio` to +-20, far outside the clips, and that of rho
    to +-10.

    Args:
        logprob: [M] log-probs of the sampled tokens under the policy being trained, nats; differentiable.
        old_logprob: [M] log-probs at sampling time; None is on-policy: ratio exactly 1, gradient -A.
        advantage: [M]. weight: [M] mask and normalisation in one (mask / global token count); the op only
        sums. ref_logprob: [M] log-probs under the reference policy; needed if `coefficients.kl` is not 0.
        skill_logprob: [M] log-probs of the same tokens in the skill-augmented context; needed for opd and
        skill_kl. opd_weight: [M] like `weight`, for opd and skill_kl; None is `weight`. entropy: [M] entropy
        of the policy at each token; differentiable, needed if `coefficients.entropy` is not 0.

    Returns:
        The scalar loss (float32; float64 for float64 log-probs) and detached PolicyLossTerms. Every term is
        linear in one scalar per token on the way back, and nothing but `logprob` and `entropy` gets a
        gradient. Tokens of weight 0 may hold NaN or inf anywhere: they change neither value nor gradient. If
        there are no others (or M = 0) the loss is exactly 0, tied to its inputs, with zero gradients.

    Raises:
        ValueError: a tensor that is not [M], or one that its coefficient needs is None.
    """
    optional = {
        "old_logprob": old_logprob,
        "ref_logprob": ref_logprob,
        "skill_logprob": skill_logprob,
        "opd_weight": opd_weight,
        "entropy": entropy,
    }
    check_arguments(logprob, coefficients, advantage=advantage, weight=weight, **optional)
    loss, terms = resolve("policy_loss", logprob)(
        logprob, advantage=advantage, weight=weight, coefficients=coefficients, **optional
    )
    return loss, terms


def check_arguments(
    logprob: Tensor, coefficients: PolicyLossCoefficients, **per_token: Tensor | None
) -> None:
    """Raises what `policy_loss` raises; `per_token` are its other tensors by name."""
    for name, tensor in per_token.items():
        if logprob.ndim != 1 or (tensor is not None and tensor.shape != logprob.shape):
            raise ValueError(f"policy_loss: {name} and logprob must both be [M], one value per sampled token")
    for name, needs in (
        ("kl", "ref_logprob"),
        ("entropy", "entropy"),
        ("opd", "skill_logprob"),
        ("skill_kl", "skill_logprob"),
    ):
        if getattr(coefficients, name) != 0 and per_token[needs] is None:
            raise ValueError(f"policy_loss: the coefficient {name} is not 0, so {needs} is needed")
