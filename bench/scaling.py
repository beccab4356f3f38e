"""Weak scaling: one process, and several with as many times the work, taking turns.

    sprout bench scaling --ranks 2 --json

Every process has as many threads and as much to do, so in the best case all take equally long: a ratio of 1.
What is lost goes into gathering weights and summing gradients, and into memory that the cores share.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np

from sprout.bench.measure import Timing
from sprout.bench.table import Row

WORKS = ("update", "generation")


@dataclass(frozen=True)
class ScalingResult:
    """Timings by work and number of processes, a value per round; `cores` are those they could use."""

    ranks: int
    timings: dict[tuple[str, int], Timing]
    cores: int

    def efficiency(self, work: str) -> float:
        """Time of one process over that of all: 1 is perfect."""
        return self.timings[work, self.ranks].speedup_over(self.timings[work, 1])

    def rows(self) -> list[Row]:
        """A table row per work and number of processes."""
        return [
            {
                "work": work,
                "processes": processes,
                "median_s": timing.median,
                "p20_s": timing.p20,
                "p80_s": timing.p80,
                "work_per_s": processes / timing.median,
            }
            for (work, processes), timing in self.timings.items()
        ]

    def summary(self) -> Row:
        """The numbers to follow."""
        efficiencies = {f"weak_scaling_{work}": self.efficiency(work) for work in WORKS}
        return {**efficiencies, "processes": self.ranks, "cores": self.cores}


def measure_scaling(
    ranks: int, model: str, device: str, dtype: str, rounds: int, size: str = "full", calls: int = 3
) -> ScalingResult:
    """Start one process and `ranks` processes in turns, and take the median of each one's calls."""
    cores = len(os.sched_getaffinity(0))
    threads = max(1, cores // ranks)
    seconds: dict[tuple[str, int], list[float]] = {(work, n): [] for work in WORKS for n in (1, ranks)}
    for r in range(rounds):
        for processes in (1, ranks) if r % 2 == 0 else (ranks, 1):
            found = _measured(processes, threads, [model, device, dtype, str(calls), size])
            for work in WORKS:
                seconds[work, processes].append(float(np.median(found[work])))
    return ScalingResult(ranks, {key: Timing(tuple(values)) for key, values in seconds.items()}, cores)


def _measured(processes: int, threads: int, arguments: list[str]) -> dict[str, list[float]]:
    """What `scaling_rank` says. Raises RuntimeError, with its last words, when it fails."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(torchrun if processes > 1 else []), "-m", "sprout.bench.scaling_rank"]
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{processes} processes failed:\n{done.stderr.strip()[-2000:]}")
    found: dict[str, list[float]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
