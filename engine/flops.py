"""FLOPs and bytes of a forest under a model: the physical limit printed next to every measured time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sprout.engine.forest import Forest
from sprout.engine.model import ModelConfig

PEAK_FLOPS = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}


@dataclass(frozen=True)
class PairFlops:
    """FLOPs of a student and a teacher, sharing rows or not."""

    shared: float
    unshared: float

    @property
    def saving(self) -> float:
        """How many times fewer FLOPs the forest needs than one pass per turn and context."""
        return self.unshared / max(self.shared, 1.0)


def peak_flops(device: torch.device) -> float | None:
    """Dense bf16 FLOPs per second that a GPU's maker states; None for a CPU or a GPU that is not listed."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)


def forward_flops(config: ModelConfig, rows: float, attention_pairs: float) -> float:
    """Layers only: two FLOPs per weight and row, and q.k plus p.v per visible (query, key) pair."""
    attention = 4 * config.layers * config.heads * config.head_size * attention_pairs
    return 2 * config.parameters_per_row() * rows + attention


def head_flops(config: ModelConfig, tokens: float) -> float:
    """One forward of the LM head for `tokens` scored tokens."""
    return 2.0 * config.hidden_size * config.vocab_size * tokens


def forest_flops(config: ModelConfig, forest: Forest) -> tuple[float, float]:
    """One forward over the trained and over the scored-only rows."""
    T, q, depth = forest.trained, forest.trained_read, forest.position + 1
    return (
        _half_flops(config, depth[:T], depth[forest.read[:q]]),
        _half_flops(config, depth[T:], depth[forest.read[q:]]),
    )


def _half_flops(config: ModelConfig, depth: torch.Tensor, read: torch.Tensor) -> float:
    """Rows with `depth` visible keys each, of which the last layer lets those of depth `read` alone go on."""
    pairs = float(depth.sum())
    unread, unread_pairs = len(depth) - len(read), pairs - float(read.sum())
    heads = config.heads * config.head_size
    skipped = 2 * config.hidden_size * (heads + 3 * config.intermediate_size) * unread
    skipped += 4 * heads * unread_pairs
    return forward_flops(config, len(depth), pairs) - skipped


def pair_flops(config: ModelConfig, forest: Forest) -> PairFlops:
    """Predicted FLOPs with the forest's sharing and with separate sequences; backward = 2 forwards."""
    trained, scored = forest_flops(config, forest)
    students, teachers = (lengths.astype(np.float64) for lengths in forest.logical_lengths)
    taught = float((forest.teacher_row >= 0).sum())
    head = 3 * head_flops(config, len(forest.target)) + head_flops(config, taught)
    unshared = 3 * forward_flops(config, students.sum(), causal_pairs(students))
    unshared += forward_flops(config, teachers.sum(), causal_pairs(teachers))
    return PairFlops(3 * trained + scored + head, unshared + head)


def score_flops(config: ModelConfig, forest: Forest) -> PairFlops:
    """Like `pair_flops`, for scoring alone: both contexts forward, nothing backward."""
    lengths = np.concatenate(forest.logical_lengths).astype(np.float64)
    scored = len(forest.target) + float((forest.teacher_row >= 0).sum())
    head = head_flops(config, scored)
    unshared = forward_flops(config, lengths.sum(), causal_pairs(lengths))
    return PairFlops(sum(forest_flops(config, forest)) + head, unshared + head)


def causal_pairs(lengths: np.ndarray) -> float:
    return float((lengths * (lengths + 1) / 2).sum())
