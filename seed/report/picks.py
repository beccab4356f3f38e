"""Which trajectories of an update become cases.

Four rules pick them in turn, so that rare and telling cases are there beside an unbiased sample: the largest
|Delta| of a token, the strongest disagreement of Delta with the outcome, an invalid skill, and a draw that
depends on the trajectory's id alone, so that it is the same in every report.
"""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sprout.seed.scores import ScoredTurn
from sprout.seed.trajectory import Trajectory


class Measured:
    """A trajectory, its scores, and what the rules look at."""

    def __init__(self, trajectory: Trajectory, scores: list[ScoredTurn]) -> None:
        self.trajectory, self.scores = trajectory, scores
        delta = known_values(trajectory, scores, "delta")
        self.delta_mean = float(delta.mean()) if len(delta) else None
        self.delta_max = float(np.abs(delta).max()) if len(delta) else None
        self.draw = zlib.crc32(f"{trajectory.update}/{trajectory.id}".encode())

    @property
    def disagreement(self) -> float | None:
        """|mean Delta| where the skill speaks for a failure or against a success."""
        if self.delta_mean is None or self.trajectory.reward is None:
            return None
        against = -self.delta_mean if self.trajectory.success else self.delta_mean
        return against if against > 0 else None


Rule = Callable[[Measured], float | None]
RULES: dict[str, Rule] = {
    "largest |Delta|": lambda measured: measured.delta_max,
    "disagreement": lambda measured: measured.disagreement,
    "invalid skill": lambda measured: (
        measured.draw if measured.trajectory.skill and not measured.trajectory.skill.valid else None
    ),
    "random": lambda measured: measured.draw,
}


class Best:
    """The `most` items of highest value, best first."""

    def __init__(self, most: int, rule: Rule) -> None:
        self._most, self._rule, self._number = most, rule, itertools.count()
        self._heap: list[tuple[float, int, Measured]] = []

    def offer(self, measured: Measured) -> None:
        """Keep it if it is among the best; a rule's None keeps it out."""
        value = self._rule(measured)
        if value is None:
            return
        heapq.heappush(self._heap, (value, -next(self._number), measured))
        if len(self._heap) > self._most:
            heapq.heappop(self._heap)

    def best_first(self) -> list[Measured]:
        return [measured for *_, measured in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


def in_turn(picks: Mapping[str, Best], most: int) -> Iterator[tuple[str, Measured]]:
    """Rule by rule the best that is not taken yet, until there are `most`."""
    queues = {name: iter(pick.best_first()) for name, pick in picks.items()}
    taken: set[str] = set()
    while queues and len(taken) < most:
        for name in list(queues):
            measured = next((m for m in queues[name] if m.trajectory.id not in taken), None)
            if measured is None:
                del queues[name]
            elif len(taken) < most:
                taken.add(measured.trajectory.id)
                yield name, measured


def known_values(trajectory: Trajectory, scores: Sequence[ScoredTurn], name: str) -> NDArray[np.float64]:
    """The known values of one column, over the tokens that the policy produced."""
    parts = [np.empty(0)]
    for score in scores:
        column = getattr(score, name)
        if column is not None:
            values = np.array(column, np.float64)
            parts.append(values[np.isfinite(values) & trajectory.turns[score.turn].mask])
    return np.concatenate(parts)
