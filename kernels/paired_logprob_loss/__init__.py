"""SEED's loss from hidden rows and the LM head: student and teacher log-probs, the loss, and its gradient.

Idea: on the way back the loss is linear in one scalar c_t per token, which is known as soon as the student's
and the teacher's log-probs are. So a fused backend scores student and teacher tokens in one launch, runs the
per-token epilogue, and forms d(logits) of the student tokens at once; the teacher's never have a gradient.
d(hidden) and d(weight) are ready before `backward` is called, which only multiplies them by its upstream.

FLOPs, for M student and M' teacher tokens: the composition of the three ops takes 2 V H (M + M') forward and
6 V H M backward, of which 2 V H M form the student's logits again. Where they fit into a bounded workspace
(2 GiB of float32) and H is large enough to make moving them cheaper than forming them, the Triton backend
keeps the student's logits: 4 V H M backward, a quarter less of the student's work.

Memory: the gradients live from the forward on; beside them the workspaces of `selected_logprob`.

Numerics: those of the parts (`selected_logprob`, `policy_loss`). A teacher row that is the student's own row
gives the very same bits, so Delta is exactly 0 there. The gradients are rounded to the inputs' dtype at
upstream 1; a loss scale for float16 belongs into the token weights.

Measured: equal to the reference in Triton's interpreter (float32, float16), compiled for sm_80 and sm_90; no
speed has been measured on a GPU yet. `torch` is a composition of the ops, so it is as fast as they are.
"""

from dataclasses import dataclass

from torch import Tensor, int64

from sprout.kernels.dispatch import resolve
from sprout.kernels.policy_loss import check_arguments as check_policy_loss
from sprout.kernels.policy_loss.terms import PolicyLossCoefficients, PolicyLossTerms
from sprout.kernels.selected_logprob import check_arguments as check_selected_logprob
from sprout.kernels.selected_logprob import check_range

__all__ = ["PairedLogprobs", "paired_logprob_loss"]


@dataclass(frozen=True)
class PairedLogprobs:
    """What the loss was made of, detached; [M] float32 (float64 for float64 inputs).

    student   l_theta
    skill     l_skill: scored here, else `skill_logprob` as given, else NaN
    entropy   of the student's distribution
    terms     the statistics of `policy_loss`
    """

    student: Tensor
    skill: Tensor
    entropy: Tensor
    terms: PolicyLossTerms


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
    """`policy_loss` of `selected_logprob` in the ordinary and the skill-augmented context.

    Args:
        hidden: [N, H] final hidden rows of the student sequences; differentiable.
        weight: [V, H] LM head, same dtype and device; differentiable.
        row, target: [M] int64, hidden row in [0, N) and token id in [0, V) of every sampled token.
        scored: [S, H] rows that only teachers use; never with a gradient. None is S = 0.
        teacher_row: [M] int64 row of the same token in the skill-augmented context, into `hidden` followed
            by `scored`; -1 where there is none.
        temperature: divides the logits of both sides; a positive number or [M].
        skill_logprob: [M] log-probs to use where `teacher_row` is -1; None is NaN there.
        old_logprob, advantage, opd_weight, ref_logprob, coefficients: see `policy_loss`, whose `weight` is
            `token_weight` here.

    Returns:
        The scalar loss and its detached ingredients. Gradients reach `hidden` and `weight` only.

    Raises:
        ValueError: see `selected_logprob` and `policy_loss`; a `teacher_row` that is not int64 [M], or out of
            range (on CUDA a device-side assertion).
    """
    if teacher_row.dtype != int64 or teacher_row.shape != row.shape:
        raise ValueError(f"paired_logprob_loss: teacher_row must be int64 [{len(row)}]")
    if scored is not None and (scored.shape[1:] != hidden.shape[1:] or scored.dtype != hidden.dtype):
        raise ValueError(
            f"paired_logprob_loss: scored must be [S, {hidden.shape[-1]}] {hidden.dtype}, "
            f"not {list(scored.shape)} {scored.dtype}"
        )
    check_selected_logprob(hidden, weight, row, target, temperature)
    rows = len(hidden) + (0 if scored is None else len(scored))
    check_range("paired_logprob_loss: teacher_row", teacher_row, -1, rows)
    check_policy_loss(
        row,
        coefficients,
        advantage=advantage,
        token_weight=token_weight,
        opd_weight=opd_weight,
        old_logprob=old_logprob,
        ref_logprob=ref_logprob,
        # Neither can be missing: what is not given is scored here.
        skill_logprob=row if skill_logprob is None else skill_logprob,
        entropy=row,
    )
    loss, pair = resolve("paired_logprob_loss", hidden)(
        hidden,
        weight,
        row,
        target,
        scored=scored,
        teacher_row=teacher_row,
        temperature=temperature,
        old_logprob=old_logprob,
        advantage=advantage,
        token_weight=token_weight,
        opd_weight=opd_weight,
        ref_logprob=ref_logprob,
        skill_logprob=skill_logprob,
        coefficients=coefficients,
    )
    return loss, pair
