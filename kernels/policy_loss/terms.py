"""Settings of the policy loss and what it reports besides its value."""

from dataclasses import dataclass

from torch import Tensor

RATIO_CLAMP = 20.0  # bounds of the exponents of the ratio and of Skill-SD's rho
RHO_CLAMP = 10.0


@dataclass(frozen=True)
class PolicyLossCoefficients:
    """Coefficients and clips of the loss; the defaults are clipped GRPO without KL or entropy terms."""

    clip_low: float = 0.2  # the ratio is clipped to [1 - clip_low, 1 + clip_high]
    clip_high: float = 0.2
    dual_clip: float = 3.0  # bound of the ratio where the advantage is negative; inf switches it off
    kl: float = 0.0  # coefficient of k3(logprob, ref_logprob)
    entropy: float = 0.0  # coefficient of the entropy bonus
    opd: float = 0.0  # lambda_opd, coefficient of gated on-policy distillation
    beta: float = 5.0  # sharpness of the gate; 0 is a constant gate of 0.5
    opd_center: float = 0.0  # subtracted from the gate
    skill_kl: float = 0.0  # coefficient of Skill-SD's rho * k3(logprob, skill_logprob)
    k3_clamp: float = 10.0  # bound of k3's exponent; no gradient beyond it

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low <= 1 or self.clip_high < 0:
            raise ValueError(
                f"clip_low must be in [0, 1] and clip_high >= 0, not {self.clip_low} and {self.clip_high}"
            )
        if self.dual_clip <= 1:
            raise ValueError(f"dual_clip must exceed 1, not {self.dual_clip}; use inf to switch it off")
        if self.k3_clamp <= 0:
            raise ValueError(f"k3_clamp must be positive, not {self.k3_clamp}")


@dataclass(frozen=True)
class PolicyLossTerms:
    """Detached statistics of one call.

    Per token [M]; tokens whose weight is 0 hold the neutral value (ratio 1, k3 0, Delta 0, gate sigmoid(0)),
    and so do all where the input is absent. Scalars are weighted sums before their coefficients, so that loss
    = pg + kl_coef * kl - entropy_coef * entropy + opd_coef * opd + skill_kl_coef * skill_kl.
    """

    ratio: Tensor  # exp(logprob - old_logprob)
    clipped: Tensor  # bool: a bound of the ratio cut the policy gradient
    k3: Tensor  # estimate of KL(policy || reference)
    delta: Tensor  # skill_logprob - logprob
    gate: Tensor  # sigmoid(beta * delta)
    pg: Tensor  # scalar
    kl: Tensor  # scalar
    entropy: Tensor  # scalar
    opd: Tensor  # scalar
    skill_kl: Tensor  # scalar
