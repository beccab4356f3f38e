"""The dual forward: log-probs of the same tokens under the ordinary and the skill-augmented context."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sprout.engine.forest import Forest
from sprout.engine.model import Decoder
from sprout.kernels import selected_logprob
from sprout.kernels.paired_logprob_loss.teacher import teacher_logprob


@dataclass(frozen=True)
class PairLogprobs:
    """Per logical (turn, action token) pair of a forest, all [M] and fp32.

    student   l_theta, with autograd
    teacher   l_skill, never with autograd; NaN where the turn has no teacher; None when no turn has one
    entropy   of the student's distribution, with autograd; None when not asked for
    """

    student: Tensor
    teacher: Tensor | None
    entropy: Tensor | None


def pair_logprobs(
    decoder: Decoder, forest: Forest, *, temperature: float = 1.0, with_entropy: bool = False
) -> PairLogprobs:
    """Score every pair of the forest in one pass (SEED's l_theta and l_skill).

    A teacher context equal to the student's is served by the very same rows: its log-probs are the same bits.
    """
    trained, scored = decoder(forest)
    head, row, target = decoder.head_weight, forest.student_row, forest.target
    student, entropy = selected_logprob(trained, head, row, target, temperature, with_entropy)
    if not bool((forest.teacher_row >= 0).any()):
        return PairLogprobs(student, None, entropy)
    teacher = teacher_logprob(trained, head, row, target, scored, forest.teacher_row, temperature, student)
    return PairLogprobs(student, teacher, entropy)
