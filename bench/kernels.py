"""Every op by itself: ours on each backend and its peers, forward, backward and both, in turns.

    python -m sprout.bench.kernels --op tree_attention --quick

All providers of a case are measured in the same rounds, and so are the machine's ceilings: a large GEMM and a
large copy. The ceiling of a case is the time that its FLOPs and bytes would take at those rates, whichever is
longer. Compile times are not measured.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from sprout.bench.case import Case, Phase, Program, Setting, UnavailableError, first_line, tensors_of
from sprout.bench.measure import (
    Ceilings,
    Run,
    Timing,
    calls_needed,
    ceiling_runs,
    fastest_gemm_dtype,
    few_objects,
    peak_mb,
    rotated,
    seconds_per_call,
)
from sprout.bench.ops import CASES
from sprout.bench.table import Row
from sprout.kernels.dispatch import PRIORITY, unavailable


@dataclass(frozen=True)
class Result:
    """One provider's measurement in one phase."""

    case: Case
    provider: str
    phase: Phase
    timing: Timing
    peak_mb: float  # NaN for backward alone
    vs_baseline: float  # how many times faster than the case's baseline; NaN where that did not run
    ceilings: Ceilings

    @property
    def gflop_per_s(self) -> float:
        return self.case.work[self.phase].flops / self.timing.median / 1e9

    @property
    def gb_per_s(self) -> float:
        return self.case.work[self.phase].bytes / self.timing.median / 1e9

    @property
    def of_ceiling(self) -> float:
        """The shortest possible time over the measured one."""
        rates = self.ceilings.gemm_gflops * 1e9, self.ceilings.copy_gb_per_s * 1e9
        return self.case.work[self.phase].seconds_at(*rates) / self.timing.median

    @property
    def is_ours(self) -> bool:
        return self.provider.startswith("sprout")

    def row(self) -> Row:
        return {
            "op": self.case.op,
            "shape": self.case.label,
            "dtype": str(self.case.dtype).removeprefix("torch."),
            "phase": self.phase,
            "provider": self.provider,
            "median_ms": 1e3 * self.timing.median,
            "p20_ms": 1e3 * self.timing.p20,
            "p80_ms": 1e3 * self.timing.p80,
            "vs_baseline": self.vs_baseline,
            "gflop_per_s": self.gflop_per_s,
            "gb_per_s": self.gb_per_s,
            "percent_of_ceiling": 100 * self.of_ceiling,
            "peak_mb": self.peak_mb,
            "formula": self.case.work[self.phase].formula,
            "gemm_gflop_per_s": self.ceilings.gemm_gflops,
            "copy_gb_per_s": self.ceilings.copy_gb_per_s,
            "note": "",
        }


@dataclass(frozen=True)
class Failure:
    """A provider, or one of its phases, that did not run, and why."""

    case: Case
    provider: str
    phase: Phase | None
    why: str
    is_error: bool

    def row(self) -> Row:
        """Like `Result.row`, with empty measurements."""
        return {
            "op": self.case.op,
            "shape": self.case.label,
            "dtype": str(self.case.dtype).removeprefix("torch."),
            "phase": self.phase or "all",
            "provider": self.provider,
            "note": self.why,
        }


@dataclass
class Sweep:
    """All that was measured, and all that could not be."""

    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """One per provider, case and phase; absent measurements are empty."""
        columns = self.results[0].row() if self.results else {}
        empty: Row = dict.fromkeys(columns, "")
        return [r.row() for r in self.results] + [dict(empty) | dict(f.row()) for f in self.failures]

    def summary(self, device: torch.device) -> dict[str, float | int]:
        """Per op and phase, on the default backend: smallest speed-up, best share of the ceiling."""
        summary: dict[str, float | int] = {}
        for result in self.results:
            if result.provider != default_provider(result.case, device):
                continue
            name = f"{result.case.op}_{result.phase}"
            slower, best = f"{name}_vs_baseline", f"{name}_of_ceiling"
            if result.vs_baseline == result.vs_baseline:
                summary[slower] = min(summary.get(slower, result.vs_baseline), result.vs_baseline)
            summary[best] = max(summary.get(best, 0.0), result.of_ceiling)
        errors = sum(f.is_error and f.provider.startswith("sprout") for f in self.failures)
        return summary | {"errors_of_ours": errors, "rows": len(self.results)}


def joined(sweeps: Sequence[Sweep]) -> Sweep:
    return Sweep([r for s in sweeps for r in s.results], [f for s in sweeps for f in s.failures])


def default_provider(case: Case, device: torch.device) -> str:
    """The name of what a user gets."""
    fast = (b for b in PRIORITY[device.type] if unavailable(case.op, b, device, case.dtype) is None)
    return f"sprout {next(fast)}"


def measure_kernels(setting: Setting, ops: Sequence[str], rounds: int) -> Iterator[Sweep]:
    """One sweep per op."""
    torch.manual_seed(0)
    for op in ops:
        sweep = Sweep()
        for case in CASES[op](setting):
            measure_case(case, setting, rounds, sweep)
        yield sweep


def measure_case(case: Case, setting: Setting, rounds: int, sweep: Sweep) -> None:
    """Warm every provider up, time all of them in turns, then take their memory."""
    device = setting.device
    if setting.compile:
        torch._dynamo.reset()  # else the shapes of earlier cases use up its limit of recompilations
    with few_objects():
        programs = _programs(case, sweep)
        for phase in case.work:
            calls = _warm_calls(case, phase, programs, device, sweep)
            ceilings, timings = _time(case, phase, {n: programs[n] for n in calls}, calls, device, rounds)
            base = timings.get(case.baseline)
            for name, timing in timings.items():
                ratio = float("nan") if base is None else timing.speedup_over(base)
                run = programs[name].prepare(phase)
                memory = float("nan") if phase == "backward" else peak_beyond_results(run, device)
                sweep.results.append(Result(case, name, phase, timing, memory, ratio, ceilings))


def _programs(case: Case, sweep: Sweep) -> dict[str, Program]:
    """Whatever a peer raises is a row of the table, not the end of the benchmark."""
    programs = {}
    for name, make in case.providers.items():
        try:
            programs[name] = make()
        except Exception as error:
            is_error = not isinstance(error, UnavailableError)
            sweep.failures.append(Failure(case, name, None, first_line(error), is_error))
    return programs


def _warm_calls(
    case: Case, phase: Phase, programs: dict[str, Program], device: torch.device, sweep: Sweep
) -> dict[str, int]:
    """How many calls in a row make a measurement, by provider; those that fail are noted."""
    calls = {}
    for name, program in programs.items():
        try:
            run = program.prepare(phase)
            run()
            calls[name] = calls_needed(run, device)
        except Exception as error:
            is_error = not isinstance(error, UnavailableError)
            sweep.failures.append(Failure(case, name, phase, first_line(error), is_error))
    return calls


def _time(
    case: Case,
    phase: Phase,
    programs: dict[str, Program],
    calls: dict[str, int],
    device: torch.device,
    rounds: int,
) -> tuple[Ceilings, dict[str, Timing]]:
    ceilings = ceiling_runs(device, fastest_gemm_dtype(device, case.dtype))
    for run in ceilings.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in (*programs, *ceilings)}
    for r in range(rounds):
        gc.collect()
        for name in rotated(list(seconds), r):
            call = ceilings[name] if name in ceilings else programs[name].prepare(phase)
            seconds[name].append(seconds_per_call(call, device, calls.get(name, 1)))
    best = Ceilings.of(seconds.pop("gemm"), seconds.pop("copy"), device)
    return best, {name: Timing(tuple(values)) for name, values in seconds.items()}


def peak_beyond_results(run: Run, device: torch.device) -> float:
    """Peak of one call beyond its inputs, its outputs and the gradients it returns, in MB."""
    results: list[object] = []
    peak = peak_mb(lambda: results.append(run()), device)
    return max(0.0, peak - sum(x.nbytes for x in tensors_of(results[0])) / 1e6)


if __name__ == "__main__":
    import typer

    from sprout.bench.cli import kernels

    typer.run(kernels)
