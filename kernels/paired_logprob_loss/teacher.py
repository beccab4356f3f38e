"""The teacher's half of a pair, without gradients."""

import torch
from torch import Tensor

from sprout.kernels.selected_logprob import selected_logprob


@torch.no_grad()
def teacher_logprob(
    hidden: Tensor,
    weight: Tensor,
    row: Tensor,
    target: Tensor,
    scored: Tensor | None,
    teacher_row: Tensor,
    temperature: float | Tensor,
    student: Tensor,
) -> Tensor:
    """Log-probs [M] at the teacher rows; NaN where there is none, the student's where they are its rows."""
    teacher = torch.where(teacher_row == row, student.detach(), torch.nan)
    apart = ((teacher_row >= 0) & (teacher_row != row)).nonzero()[:, 0]
    if len(apart):
        rows = hidden if scored is None else torch.cat([hidden, scored])
        if isinstance(temperature, Tensor):
            temperature = temperature[apart]
        teacher[apart], _ = selected_logprob(rows, weight, teacher_row[apart], target[apart], temperature)
    return teacher
