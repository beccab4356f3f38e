"""The files of `sprout bench kernels`: CSV, Markdown and pictures, losing rows included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sprout.bench.kernels import Failure, Result, Sweep, joined
from sprout.bench.plots import plot_op, plot_roofline
from sprout.bench.table import Row, markdown, show, write_csv
from sprout.engine.terminal import say

SHOWN = (
    "shape",
    "phase",
    "provider",
    "median_ms",
    "p20_ms",
    "p80_ms",
    "vs_baseline",
    "gflop_per_s",
    "gb_per_s",
    "percent_of_ceiling",
    "peak_mb",
)
HEADER = """# Kernels

Medians with 20 % and 80 % quantiles of interleaved rounds. `vs_baseline`: how many times faster than
{baselines}. `gflop_per_s` and `gb_per_s` divide the formula's FLOPs and bytes by the median, whatever a
provider really computes. `percent_of_ceiling`: the time which those FLOPs or bytes (the longer) need at the
rates of a large GEMM and a large copy of the same rounds, over the median. `peak_mb`: beyond inputs, outputs
and gradients.

{machine}
"""


def print_sweep(sweep: Sweep) -> None:
    """One op's tables on the terminal."""
    first = (sweep.results or sweep.failures)[0]
    if sweep.results:
        show(f"{first.case.op} ({_formulas(sweep.results)})", [_shown(r) for r in sweep.results])
    for line in _reasons(sweep.failures):
        say(f"  did not run: {line}")


def write_files(folder: Path, sweeps: Sequence[Sweep], machine: Row) -> None:
    """kernels.csv, kernels.md, OP.png and roofline.png."""
    folder.mkdir(parents=True, exist_ok=True)
    everything = joined(sweeps)
    write_csv(folder / "kernels.csv", everything.rows(), machine)
    (folder / "kernels.md").write_text(_markdown(sweeps, machine))
    for sweep in sweeps:
        if sweep.results:
            plot_op(sweep.results, folder / f"{sweep.results[0].case.op}.png")
    plot_roofline(everything.results, folder / "roofline.png")


def _markdown(sweeps: Sequence[Sweep], machine: Row) -> str:
    baselines = dict.fromkeys(r.case.baseline for s in sweeps for r in s.results)
    columns = ", ".join(f"{name} {value}" for name, value in machine.items())
    parts = [HEADER.format(baselines=" or ".join(baselines), machine=columns)]
    for sweep in sweeps:
        first = (sweep.results or sweep.failures)[0]
        parts.append(f"\n## {first.case.op}\n\n")
        if sweep.results:
            parts.append(f"{_formulas(sweep.results)}\n\n{markdown([_shown(r) for r in sweep.results])}")
        parts += [f"\nDid not run: {line}\n" for line in _reasons(sweep.failures)]
    return "".join(parts)


def _shown(result: Result) -> Row:
    row = result.row()
    return {name: row[name] for name in SHOWN}


def _formulas(results: Sequence[Result]) -> str:
    """What is counted in each phase, and the ceilings over all cases."""
    counted = {r.phase: r.case.work[r.phase].formula for r in results}
    gemm, copy = ([getattr(r.ceilings, n) for r in results] for n in ("gemm_gflops", "copy_gb_per_s"))
    rates = f"GEMM {min(gemm):.0f}-{max(gemm):.0f} GFLOP/s, copy {min(copy):.3g}-{max(copy):.3g} GB/s"
    dtype = str(results[0].case.dtype).removeprefix("torch.")
    return f"{dtype}; " + ", ".join(f"{phase}: {text}" for phase, text in counted.items()) + f"; {rates}"


def _reasons(failures: Sequence[Failure]) -> list[str]:
    """Each provider's reasons once, however many cases they concern."""
    lines = (f"{f.provider}{f' {f.phase}' if f.phase else ''}: {f.why}" for f in failures)
    return list(dict.fromkeys(lines))
