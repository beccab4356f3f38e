"""Collects ratios and the table behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from sprout.bench.case import Case, Program
from sprout.bench.kernels import default_provider
from sprout.bench.measure import Ceilings, Run, Timing, interleaved
from sprout.bench.table import Row

OURS = "sprout"


@dataclass
class Summary:
    """The ratios found so far, and a table row for each provider measured."""

    rows: list[Row] = field(default_factory=list)
    ratios: dict[str, str | int | float] = field(default_factory=dict)

    def time(
        self,
        part: str,
        runs: Mapping[str, Run],
        rounds: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> tuple[dict[str, Timing], Ceilings]:
        """Time warm functions in turns and note the result."""
        timings, ceilings = interleaved(runs, rounds, device, dtype)
        self.rows += [
            {
                "part": part,
                "provider": name,
                "median_s": timing.median,
                "p20_s": timing.p20,
                "p80_s": timing.p80,
                "gemm_gflop_per_s": ceilings.gemm_gflops,
                "copy_gb_per_s": ceilings.copy_gb_per_s,
            }
            for name, timing in timings.items()
        ]
        return timings, ceilings


def our_program(case: Case, device: torch.device) -> Program:
    """Ours on its default backend."""
    return case.providers[default_provider(case, device)]()
