"""Paired re-scoring without training, and the scores that an update needs before its first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from sprout.engine import parallel
from sprout.engine.dual import pair_logprobs
from sprout.engine.forest import Floats, Forest, Turn
from sprout.engine.microbatch import own_groups
from sprout.engine.model import Decoder
from sprout.engine.row_budget import RowBudget

Item = TypeVar("Item")


@torch.no_grad()
def score_turns(
    decoder: Decoder,
    turns: Sequence[Turn],
    *,
    temperature: float,
    rows_per_micro_batch: int,
    budget: RowBudget | None = None,
) -> list[tuple[Floats, Floats | None]]:
    """Student and teacher log-probs of every turn under `decoder`, without training: paired re-scoring.

    `budget`, if given, replaces `rows_per_micro_batch` and remembers what memory allowed.
    """
    budget = budget or RowBudget(rows_per_micro_batch)
    return budget.fit(turns, lambda rows: _score(decoder, turns, temperature, rows), lambda: None)


def _score(
    decoder: Decoder, turns: Sequence[Turn], temperature: float, rows_per_micro_batch: int
) -> list[tuple[Floats, Floats | None]]:
    scores: dict[int, tuple[Floats, Floats | None]] = {}
    for group in own_groups(turns, rows_per_micro_batch):
        forest = Forest.pack([turns[i] for i in group], decoder.device)
        pair = pair_logprobs(decoder, forest, temperature=temperature)
        student = by_turn(pair.student, turns, group)
        teacher = by_turn(pair.teacher, turns, group) if pair.teacher is not None else [None] * len(group)
        for i, l_theta, l_skill in zip(group, student, teacher, strict=True):
            scores[i] = (l_theta, l_skill if turns[i].teacher_context is not None else None)
    parallel.reshard(decoder)
    return in_order(scores, len(turns))


def with_snapshot_scores(
    decoder: Decoder, turns: Sequence[Turn], *, temperature: float, budget: RowBudget
) -> list[Turn]:
    """The turns with old and skill log-probs from the present weights: theta_old before the first step."""
    scores = score_turns(
        decoder, turns, temperature=temperature, rows_per_micro_batch=budget.rows, budget=budget
    )
    return [
        replace(turn, teacher_context=None, old_logprob=l_theta, skill_logprob=l_skill)
        for turn, (l_theta, l_skill) in zip(turns, scores, strict=True)
    ]


def mean_gate(turns: Sequence[Turn], beta: float) -> float:
    """Mean of g over all distilled tokens, from snapshot log-probs (`opd_baseline: mean`)."""
    total, tokens = 0.0, 0.0
    for turn in turns:
        if turn.skill_logprob is None or turn.old_logprob is None:
            continue
        on = torch.from_numpy(opd_mask_of(turn)) > 0
        delta = torch.from_numpy(turn.skill_logprob - turn.old_logprob)[on].double()
        total += float(torch.sigmoid(beta * delta).sum())
        tokens += float(on.sum())
    return total / max(tokens, 1.0)


def in_order(values: dict[int, Item], count: int) -> list[Item]:
    """The values of all ranks for items 0 to count - 1."""
    found = {index: value for own in parallel.gather(values) for index, value in own.items()}
    return [found[index] for index in range(count)]


def rl_mask(turn: Turn) -> Floats:
    """Tokens that the policy produced, [len(action)]."""
    return np.ones(len(turn.action), np.float32) if turn.mask is None else turn.mask.astype(np.float32)


def opd_mask_of(turn: Turn) -> Floats:
    """Distilled tokens: none for a turn without a teacher."""
    if turn.teacher_context is None and turn.skill_logprob is None:
        return np.zeros(len(turn.action), np.float32)
    return rl_mask(turn) if turn.opd_mask is None else turn.opd_mask.astype(np.float32)


def by_turn(values: Tensor, turns: Sequence[Turn], group: Sequence[int]) -> list[Floats]:
    """Per-token values [M] of the turns `group`, one array a turn."""
    parts = values.detach().float().cpu().split([len(turns[i].action) for i in group])
    return [part.numpy() for part in parts]
