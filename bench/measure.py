"""Fair measurements: providers alternate round by round, so a slow moment of the machine hits all of them.

Times are medians with 20 % and 80 % quantiles, ratios are medians of per-round ratios, and the machine's
ceilings (a large GEMM, a large copy) are measured in the same rounds.
"""

from __future__ import annotations

import ctypes
import gc
import platform
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

Run = Callable[[], object]
GEMM_SIZE = 1024
COPY_BYTES = 128 * 2**20
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


def interleaved(
    providers: Mapping[str, Run], rounds: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[dict[str, Timing], Ceilings]:
    """Time every provider once per round; the order rotates. Providers must be warm."""
    gemm, copy = _gemm(device, dtype), _copy(device)
    runs = dict(providers) | {"gemm": gemm, "copy": copy}
    gemm(), copy()
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for r in range(rounds):
        shift = r % len(names)
        for name in names[shift:] + names[:shift]:
            seconds[name].append(timed(runs[name], device))
    gemm_best, copy_best = min(seconds.pop("gemm")), min(seconds.pop("copy"))
    ceilings = Ceilings(2 * GEMM_SIZE**3 / gemm_best / 1e9, 2 * COPY_BYTES / copy_best / 1e9)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}, ceilings


def timed(run: Run, device: torch.device) -> float:
    """Seconds of one call, with the garbage of earlier ones collected beforehand."""
    gc.collect()
    _synchronize(device)
    start = time.perf_counter()
    run()
    _synchronize(device)
    return time.perf_counter() - start


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
        "sprout": version("sprout-rl"),
    }


def _gemm(device: torch.device, dtype: torch.dtype) -> Run:
    a, b = (torch.ones(GEMM_SIZE, GEMM_SIZE, device=device, dtype=dtype) for _ in range(2))
    return lambda: torch.mm(a, b)


def _copy(device: torch.device) -> Run:
    source = torch.ones(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _status_kb(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    assert match, f"/proc/self/status has no {field}"
    return int(match[1])


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return match[1] if match else platform.processor() or platform.machine()
