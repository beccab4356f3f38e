"""Learning-rate schedules as a pure function of the step: a resumed run needs no scheduler state."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up from 0 to 1, then constant, or linear or cosine decay to `final_ratio` at `total_steps`.

    The warm-up lasts `warmup_steps`, or `warmup_ratio` of `total_steps` (rounded up). Past `total_steps` the
    factor stays at `final_ratio`.
    """

    kind: Literal["constant", "linear", "cosine"] = "constant"
    total_steps: int | None = None
    warmup_steps: int = 0
    warmup_ratio: float = 0.0
    final_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "linear", "cosine"):
            raise ValueError(f"schedule {self.kind!r} is unknown; use constant, linear or cosine")
        for name in ("warmup_ratio", "final_ratio"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)} must lie between 0 and 1")
        if self.warmup_steps < 0 or (self.warmup_steps and self.warmup_ratio):
            raise ValueError("give warmup_steps >= 0 or warmup_ratio, not both")
        needs_total = self.kind != "constant" or self.warmup_ratio > 0
        if needs_total and (self.total_steps is None or self.total_steps < 1):
            raise ValueError(f"a {self.kind} schedule with decay or a warmup_ratio needs total_steps >= 1")

    @property
    def warmup(self) -> int:
        """Steps of warm-up."""
        return self.warmup_steps or math.ceil(self.warmup_ratio * (self.total_steps or 0))

    def factor(self, step: int) -> float:
        """Multiplier of the peak learning rate for the step with index `step` (the first one is 0)."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.kind == "constant":
            return 1.0
        remaining = 1.0 - self._progress(step)
        if self.kind == "cosine":
            remaining = 0.5 * (1.0 - math.cos(math.pi * remaining))
        return self.final_ratio + (1.0 - self.final_ratio) * remaining

    def _progress(self, step: int) -> float:
        assert self.total_steps is not None
        return min(1.0, (step - self.warmup) / max(1, self.total_steps - self.warmup))
