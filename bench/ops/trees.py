"""The trees that attention is measured on, shared and unrolled into the sequences they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sprout.bench.workload import PairShape, make_trajectories
from sprout.engine.forest import Forest, Turn
from sprout.kernels import Intervals

Sequences = tuple[Tensor, ...]


@dataclass(frozen=True)
class Tree:
    """R rows in DFS order, and the batches [sequences, length] of row numbers of its unrolled sequences.

    Sequences of equal length come as one batch: unrolled attention needs no padding.
    """

    name: str
    intervals: Intervals
    unrolled: Sequences

    @property
    def rows(self) -> int:
        return self.intervals.query_enter.shape[0]

    @property
    def visible_pairs(self) -> int:
        """Of a query and a key it sees."""
        enter = self.intervals.query_enter.sort().values
        seen = torch.searchsorted(enter, self.intervals.key_exit) - torch.searchsorted(
            enter, self.intervals.key_enter
        )
        return int(seen.sum())

    @property
    def unrolled_pairs(self) -> int:
        return sum(n * length * (length + 1) // 2 for n, length in (x.shape for x in self.unrolled))


def causal(rows: int, device: torch.device) -> Tree:
    """One sequence."""
    return Tree("causal", Intervals.causal(rows, device), (torch.arange(rows, device=device)[None],))


def group(prompt: int, leaves: int, length: int, device: torch.device) -> Tree:
    """A prompt and the answers to it, as in GRPO."""
    ids = np.arange(prompt + leaves * length)
    sequences = [
        np.concatenate([ids[:prompt], ids[prompt + i * length : prompt + (i + 1) * length]])
        for i in range(leaves)
    ]
    return _tree(f"group of {leaves}", sequences, device)


def canonical(shape: PairShape, device: torch.device, *, teachers: bool = False) -> Tree:
    """The student sequences of the canonical workload, or its teacher sequences."""
    turns = [turn for trajectory in make_trajectories(shape, 2**20) for turn in trajectory.turns]
    return _tree("canonical", [_sequence(turn, teachers) for turn in turns], device)


def _sequence(turn: Turn, teacher: bool) -> np.ndarray:
    context = turn.teacher_context if teacher else turn.context
    assert context is not None
    return np.concatenate([context, turn.action])


def _tree(name: str, sequences: Sequence[np.ndarray], device: torch.device) -> Tree:
    """Pack sequences of token ids; a scored token needs no row of its own, so each gives one row less."""
    turns = [Turn(context=s[:-1], action=s[-1:]) for s in sequences]
    forest = Forest.pack(turns, device)
    parent = _parents(forest)
    by_length: dict[int, list[np.ndarray]] = {}
    for last in forest.read[forest.student_row].tolist():
        path = _path(parent, last)
        by_length.setdefault(len(path), []).append(path)
    unrolled = tuple(torch.from_numpy(np.stack(paths)).to(device) for paths in by_length.values())
    return Tree(name, forest.trained_intervals, unrolled)


def _parents(forest: Forest) -> list[int]:
    """In DFS order a row continues the last row that is one step less deep."""
    open_rows: dict[int, int] = {-1: -1}
    parents = []
    for row, depth in enumerate(forest.position.tolist()):
        parents.append(open_rows[depth - 1])
        open_rows[depth] = row
    return parents


def _path(parents: list[int], row: int) -> np.ndarray:
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return np.array(path[::-1])
