"""Out of memory in an update: halve the rows of a micro-batch and do the work again.

The split into micro-batches does not change a gradient (`engine.microbatch`), so all that is lost is time.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from sprout.engine import parallel
from sprout.engine.forest import Turn
from sprout.engine.microbatch import rows_alone

Result = TypeVar("Result")


class RowBudget:
    """Rows of a micro-batch; `halvings` counts how often memory did not suffice."""

    def __init__(self, rows: int) -> None:
        self.rows, self.halvings = rows, 0

    def fit(self, turns: Sequence[Turn], work: Callable[[int], Result], undo: Callable[[], None]) -> Result:
        """`work(rows)` on `turns`; after running out of memory `undo()`, and again with half the rows.

        Raises MemoryError, saying what to change, when no smaller split is possible. Several ranks cannot
        repeat a part alone: there the error ends the run.
        """
        while True:
            try:
                return work(self.rows)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                problem = (str(error) or type(error).__name__).splitlines()[0]
            undo()
            self._halve(turns, problem)

    def _halve(self, turns: Sequence[Turn], problem: str) -> None:
        longest = max(map(rows_alone, turns), default=0)
        if parallel.world_size() > 1 or self.rows // 2 < longest:
            raise MemoryError(
                f"out of memory with micro-batches of {self.rows} rows (one turn needs {longest}): lower "
                "train.rows_per_micro_batch or rollout.max_context_tokens, or set "
                f"train.activation_checkpointing=true ({problem})"
            )
        self.rows //= 2
        self.halvings += 1
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(f"out of memory; going on with micro-batches of {self.rows} rows", stacklevel=4)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the CPU or on a device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
