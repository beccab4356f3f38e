"""Who sees whom in a forest, as three integer vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sprout.kernels.tree_attention.plan import Plan
from sprout.kernels.tree_attention.ranges import Ranges


@dataclass(frozen=True, eq=False)
class Intervals:
    """Key j is visible to query i iff key_enter[j] <= query_enter[i] < key_exit[j].

    query_enter            [R] int32, DFS number of each query row
    key_enter, key_exit    [S] int32, DFS number of each key row, and one past the last row of its subtree
    """

    query_enter: Tensor
    key_enter: Tensor
    key_exit: Tensor

    def __post_init__(self) -> None:
        vectors = (self.query_enter, self.key_enter, self.key_exit)
        if any(vector.ndim != 1 or vector.dtype != torch.int32 for vector in vectors):
            raise ValueError("intervals: query_enter, key_enter and key_exit must be 1-D int32 tensors")
        if self.key_enter.shape != self.key_exit.shape:
            raise ValueError(
                f"intervals: {len(self.key_enter)} key_enter values for {len(self.key_exit)} key_exit values"
            )

    @staticmethod
    def causal(rows: int, device: torch.device | str = "cpu") -> Intervals:
        """One sequence of `rows` tokens: each sees itself and everything before it."""
        enter = torch.arange(rows, dtype=torch.int32, device=device)
        return Intervals(enter, enter, torch.full_like(enter, rows))

    def to(self, device: torch.device | str) -> Intervals:
        """The same intervals on another device; self if they are there already."""
        if self.query_enter.device == torch.device(device):
            return self
        return Intervals(self.query_enter.to(device), self.key_enter.to(device), self.key_exit.to(device))

    def of_queries(self, rows: Tensor) -> Intervals:
        """Some of the queries, by index, and all keys."""
        return Intervals(self.query_enter[rows], self.key_enter, self.key_exit)

    def visible(self) -> Tensor:
        """[R, S] bool, for small forests and for checking."""
        query = self.query_enter[:, None]
        return (self.key_enter <= query) & (query < self.key_exit)

    @cached_property
    def ranges(self) -> Ranges:
        """Which sorted queries see each key; made at the first use, shared by all layers."""
        return Ranges.make(self.query_enter, self.key_enter, self.key_exit)

    @cached_property
    def plan(self) -> Plan:
        """Blocks of queries with the keys each block needs; made at the first use, shared by all layers."""
        return Plan.make(self.ranges, self.query_enter.device)

    @cached_property
    def derived(self) -> dict[Any, Any]:
        """What other backends derive from the vectors; made at the first use, shared by all layers."""
        return {}
