"""Hindsight analyzers write one skill per completed trajectory; sources say whose skill a teacher shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # environments import this package, and their workers do without torch
    from sprout.seed.trajectory import Skill, Trajectory


class Analyzer(Protocol):
    """Writes one skill per trajectory, in order. A skill that cannot be had is returned with valid=False."""

    name: str

    def analyze(self, trajectories: list[Trajectory]) -> list[Skill]:
        """One skill per trajectory."""
        ...
