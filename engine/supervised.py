"""Supervised fine-tuning over forests: mean NLL of the masked action tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sprout.engine import parallel
from sprout.engine.forest import Forest, Turn
from sprout.engine.microbatch import own_groups
from sprout.engine.model import Decoder
from sprout.engine.optimizer import Optimizer
from sprout.kernels import selected_logprob


@dataclass(frozen=True)
class SupervisedResult:
    """Mean NLL per token, gradient norm before clipping, scored tokens and rows of one step."""

    loss: float
    grad_norm: float
    tokens: float
    rows: int


def supervised_step(
    decoder: Decoder, optimizer: Optimizer, turns: Sequence[Turn], rows_per_micro_batch: int
) -> SupervisedResult:
    """One optimizer step on the mean NLL of all masked action tokens of `turns`, the same on every rank."""
    weights = token_weights(turns)
    optimizer.zero_grad()
    loss, rows = 0.0, 0
    for group in own_groups(turns, rows_per_micro_batch):
        forest = Forest.pack([turns[i] for i in group], decoder.device)
        nll = supervised_nll(decoder, forest, _weight(weights, group))
        nll.backward()
        loss += float(nll.detach())
        rows += forest.rows
    grad_norm = optimizer.step()
    loss, rows = (sum(parts) for parts in zip(*parallel.gather((loss, rows)), strict=True))
    return SupervisedResult(loss, grad_norm, float(sum((w > 0).sum() for w in weights)), rows)


@torch.no_grad()
def supervised_loss(decoder: Decoder, turns: Sequence[Turn], rows_per_micro_batch: int) -> float:
    """Mean NLL of held-out turns, without a gradient."""
    weights = token_weights(turns)
    loss = 0.0
    for group in own_groups(turns, rows_per_micro_batch):
        forest = Forest.pack([turns[i] for i in group], decoder.device)
        loss += float(supervised_nll(decoder, forest, _weight(weights, group)))
    parallel.reshard(decoder)
    return sum(parallel.gather(loss))


def supervised_nll(decoder: Decoder, forest: Forest, weight: torch.Tensor) -> torch.Tensor:
    """Weighted negative log-prob of the forest's pairs; weight [M] already holds mask and normalisation."""
    hidden, _ = decoder(forest)
    logprob, _ = selected_logprob(hidden, decoder.head_weight, forest.student_row, forest.target)
    return -(weight.to(logprob.device) * logprob).sum()


def token_weights(turns: Sequence[Turn]) -> list[torch.Tensor]:
    """Per-turn mask divided by the number of masked tokens of all turns; 0 if there are none."""
    masks = [np.ones(len(t.action), np.float32) if t.mask is None else t.mask for t in turns]
    total = float(sum(m.sum() for m in masks))
    return [torch.from_numpy(m / max(total, 1.0)).float() for m in masks]


def _weight(weights: Sequence[torch.Tensor], group: Sequence[int]) -> torch.Tensor:
    return torch.cat([weights[i] for i in group]) if group else torch.zeros(0)
