"""Metrics of a run: `metrics.jsonl`, TensorBoard and timers; rank 0 writes, the others stay silent.

`metrics.jsonl` holds one object per update. A resumed run first drops the lines of the updates it is about to
repeat, so no curve ever steps back. Nothing is filtered: a NaN or infinite value becomes null in the line
and is named in its "non_finite" object.
"""

import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from sprout.engine import parallel
from sprout.engine.files import replace_file

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS_FILE = "metrics.jsonl"


class MetricsLogger:
    """Appends the metrics of updates to `run_dir`.

    resume_from: the next update to be logged; lines (and TensorBoard events) from there on are dropped. With
    None the run must not have metrics yet, else FileExistsError.
    """

    def __init__(
        self, run_dir: str | Path, *, resume_from: int | None = None, tensorboard: bool = True
    ) -> None:
        self.file = Path(run_dir) / METRICS_FILE
        self._writer: SummaryWriter | None = None
        if not parallel.is_main():
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if resume_from is not None:
            truncate_metrics(self.file, resume_from)
        elif self.file.exists() and self.file.stat().st_size:
            raise FileExistsError(
                f"{self.file} already holds metrics: resume the run or choose another run name"
            )
        if tensorboard:
            self._writer = _tensorboard(self.file.parent / "tensorboard", resume_from)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write one line for update `step`; it is on disk when the call returns.

        Values are numbers, booleans, strings, or 0-d arrays and tensors; ValueError names any other.
        """
        values = {name: _plain(name, value) for name, value in metrics.items()}
        if not parallel.is_main():
            return
        with self.file.open("ab") as file:
            file.write(orjson.dumps(_line(step, values)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if self._writer is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._writer.add_scalar(name, value, step)
            self._writer.flush()

    def close(self) -> None:
        """Close the TensorBoard file; metrics.jsonl needs no closing."""
        if self._writer is not None:
            self._writer.close()


class Timings:
    """Seconds spent in named phases of an update, as `timing_s/*`.

    Usage: `with timings("rollout"): ...`, and `timings.collect()` once an update. A phase entered several
    times adds up; phases may nest.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - start

    def collect(self) -> dict[str, float]:
        """Return {"timing_s/phase": seconds} and start over."""
        seconds, self._seconds = self._seconds, {}
        return {f"timing_s/{phase}": value for phase, value in seconds.items()}


def read_metrics(file: str | Path) -> list[dict[str, Any]]:
    """All complete lines of a metrics file, in order; `iter_metrics` says what happens to others."""
    return list(iter_metrics(file))


def iter_metrics(file: str | Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a metrics file, one at a time.

    A last line torn by a crash is left out with a warning; any other bad line is a ValueError naming it.
    """
    with Path(file).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            record = _parse(line)
            if record is not None:
                yield record
            elif not line.endswith(b"\n"):
                warnings.warn(f"{file}: dropped line {number}, which a crash left unfinished", stacklevel=2)
            elif line.strip():
                raise ValueError(f"{file}: line {number} is not a metrics object; repair or remove that line")


def truncate_metrics(file: Path, resume_from: int) -> None:
    """Drop the lines of updates >= `resume_from` and a torn last line; a crash leaves the old file."""
    if not file.exists():
        return
    kept = [record for record in read_metrics(file) if record["step"] < resume_from]
    replace_file(file, b"".join(orjson.dumps(record) + b"\n" for record in kept))


def _line(step: int, values: dict[str, Any]) -> dict[str, Any]:
    non_finite = {k: str(v) for k, v in values.items() if isinstance(v, float) and not math.isfinite(v)}
    line = {"step": step, **values, **dict.fromkeys(non_finite)}
    return {**line, "non_finite": non_finite} if non_finite else line


def _plain(name: str, value: Any) -> bool | int | float | str:
    if name in ("step", "non_finite"):
        raise ValueError(f"metric name {name!r} is reserved; rename it")
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"metric {name} is a {type(value).__name__}; log a number or a string")
    return value


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _tensorboard(folder: Path, purge_step: int | None) -> "SummaryWriter":
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=purge_step)
