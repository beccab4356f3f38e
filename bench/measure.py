"""Fair measurements: providers alternate round by round, so a slow moment of the machine hits all of them.

Times are medians with 20 % and 80 % quantiles, ratios are medians of per-round ratios, and the machine's
ceilings (a large GEMM, a large copy) are measured in the same rounds.
"""

from __future__ import annotations

import ctypes
import gc
import math
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch

Run = Callable[[], object]
GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
COPY_BYTES = {"cpu": 128 * 2**20, "cuda": 2**30}
SHORTEST_S = {"cpu": 0.01, "cuda": 0.03}  # of a measured stretch of calls
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Timing:
    """Seconds of one provider, a value per round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def p20(self) -> float:
        return float(np.quantile(self.seconds, 0.2))

    @property
    def p80(self) -> float:
        return float(np.quantile(self.seconds, 0.8))

    def speedup_over(self, other: Timing) -> float:
        """How many times faster than `other`: the median of the rounds' ratios."""
        return float(np.median(np.array(other.seconds) / np.array(self.seconds)))


@dataclass(frozen=True)
class Ceilings:
    """What the machine reaches at best in these rounds."""

    gemm_gflops: float
    copy_gb_per_s: float

    @staticmethod
    def of(gemm_s: Sequence[float], copy_s: Sequence[float], device: torch.device) -> Ceilings:
        """From the seconds of the functions of `ceiling_runs`."""
        flops, traffic = 2 * GEMM_SIZE[device.type] ** 3, 2 * COPY_BYTES[device.type]
        return Ceilings(flops / min(gemm_s) / 1e9, traffic / min(copy_s) / 1e9)


def interleaved(
    providers: Mapping[str, Run], rounds: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[dict[str, Timing], Ceilings]:
    """Time every provider once per round; the order rotates. Providers must be warm."""
    runs = dict(providers) | ceiling_runs(device, dtype)
    runs["gemm"](), runs["copy"]()
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with few_objects():
        for r in range(rounds):
            for name in rotated(names, r):
                seconds[name].append(timed(runs[name], device))
    ceilings = Ceilings.of(seconds.pop("gemm"), seconds.pop("copy"), device)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}, ceilings


@contextmanager
def few_objects() -> Iterator[None]:
    """Inside, garbage collection looks at new objects only: with large libraries loaded it takes a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The names in another order each round, so that none always comes first."""
    shift = by % len(names)
    return [*names[shift:], *names[:shift]]


def timed(run: Run, device: torch.device) -> float:
    """Seconds of one call, with the garbage of earlier ones collected beforehand."""
    gc.collect()
    return seconds_per_call(run, device)


def seconds_per_call(run: Run, device: torch.device, calls: int = 1) -> float:
    """Mean of `calls` calls in a row; on CUDA they queue up, so that launching them is not what is timed."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        run()
    synchronize(device)
    return (time.perf_counter() - start) / calls


def calls_needed(run: Run, device: torch.device) -> int:
    """Calls in a row that last long enough for the clock."""
    return max(1, math.ceil(SHORTEST_S[device.type] / seconds_per_call(run, device)))


def peak_mb(run: Run, device: torch.device) -> float:
    """Memory that one call needs at its peak beyond what is held before it, in MB (10^6 bytes).

    On CUDA what the allocator hands out; on the CPU resident memory, through Linux's resettable high-water
    mark, so buffers of native code and of numpy count too. NaN where the kernel offers no such mark.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return (torch.cuda.max_memory_allocated(device) - before) / 1e6
    if not CLEAR_REFS.exists():
        return float("nan")
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR_REFS.write_text("5")
    before = _status_kb("VmRSS")
    run()
    return (_status_kb("VmHWM") - before) * 1024 / 1e6


def machine(device: torch.device) -> dict[str, str | int]:
    """Device and version columns of a result."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "sprout": _own_version(),
    }


def ceiling_runs(device: torch.device, dtype: torch.dtype) -> dict[str, Run]:
    """A large GEMM in `dtype`, and a large copy."""
    size, nbytes = GEMM_SIZE[device.type], COPY_BYTES[device.type]
    a, b = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    source = torch.ones(nbytes // 4, device=device)
    target = torch.empty_like(source)
    return {"gemm": lambda: torch.mm(a, b), "copy": lambda: target.copy_(source)}


@cache
def fastest_gemm_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """`dtype` or float32, whichever multiplies faster here: operands in half precision may be upcast."""
    size = GEMM_SIZE[device.type] // 2
    seconds = {}
    for candidate in (dtype, torch.float32):
        a = torch.ones(size, size, device=device, dtype=candidate)
        run = partial(torch.mm, a, a)
        run()
        seconds[candidate] = seconds_per_call(run, device)
    return min(seconds, key=seconds.__getitem__)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _own_version() -> str:
    """A checkout that is only on the path, as on a borrowed machine, has no version of its own."""
    try:
        return version("sprout-rl")
    except PackageNotFoundError:
        return "not installed"


def _status_kb(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    assert match, f"/proc/self/status has no {field}"
    return int(match[1])


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return match[1] if match else platform.processor() or platform.machine()
