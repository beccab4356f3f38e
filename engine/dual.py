"""The dual forward: log-probs of the same tokens under the ordinary and the skill-augmented context."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sprout.engine.forest import Forest
from sprout.engine.model import Decoder
from sprout.kernels import selected_logprob


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
    student, entropy = selected_logprob(
        trained, decoder.head_weight, forest.student_row, forest.target, temperature, with_entropy
    )
    teacher = _teacher_logprobs(decoder, forest, trained, scored, student, temperature)
    return PairLogprobs(student, teacher, entropy)


@torch.no_grad()
def _teacher_logprobs(
    decoder: Decoder,
    forest: Forest,
    trained: Tensor,
    scored: Tensor | None,
    student: Tensor,
    temperature: float,
) -> Tensor | None:
    row = forest.teacher_row
    if not bool((row >= 0).any()):
        return None
    teacher = torch.where(row == forest.student_row, student.detach(), torch.nan)
    apart = ((row >= 0) & (row != forest.student_row)).nonzero()[:, 0]
    if len(apart):
        hidden = trained.detach() if scored is None else torch.cat([trained.detach(), scored])
        values, _ = selected_logprob(
            hidden, decoder.head_weight.detach(), row[apart], forest.target[apart], temperature
        )
        teacher[apart] = values
    return teacher
