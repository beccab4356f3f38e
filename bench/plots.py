"""Pictures of a sweep: one per op, and all ops under the machine's roofline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sprout.bench.kernels import Result

PHASES = ("forward", "backward", "full")


def plot_op(results: Sequence[Result], file: Path) -> None:
    """Median time of every provider over the cases of one op, with its 20 % and 80 % quantiles."""
    labels = list(dict.fromkeys(r.case.label for r in results))
    providers = list(dict.fromkeys(r.provider for r in results))
    phases = [phase for phase in PHASES if any(r.phase == phase for r in results)]
    figure = _figure(5 * len(phases) + 3, 4.5)
    for index, phase in enumerate(phases):
        axes = figure.add_subplot(1, len(phases), index + 1, yscale="log", title=phase)
        for number, provider in enumerate(providers):
            mine = {r.case.label: r.timing for r in results if (r.phase, r.provider) == (phase, provider)}
            x = [labels.index(label) for label in mine]
            y, low, high = (
                np.array([1e3 * getattr(t, name) for t in mine.values()]) for name in ("median", "p20", "p80")
            )
            style = {"marker": "o", "linewidth": 2} if provider.startswith("sprout") else {"marker": "."}
            axes.errorbar(x, y, (y - low, high - y), label=provider, color=f"C{number}", **style)
        axes.set_xticks(range(len(labels)), labels, rotation=25, ha="right", fontsize=7)
        axes.set_ylabel("ms" if index == 0 else "")
        axes.grid(axis="y", which="both", alpha=0.2)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.suptitle(results[0].case.op)
    figure.savefig(file, dpi=120)


def plot_roofline(results: Sequence[Result], file: Path) -> None:
    """Rate over FLOPs per byte, under the best copy and GEMM measured; peers are small and grey."""
    copy = max(r.ceilings.copy_gb_per_s for r in results)
    gemm = max(r.ceilings.gemm_gflops for r in results)
    intensity = [r.case.work[r.phase].flops / r.case.work[r.phase].bytes for r in results]
    figure = _figure(9, 6)
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel="FLOPs per byte", ylabel="GFLOP/s")
    x = np.geomspace(min(intensity) / 2, max(*intensity, gemm / copy) * 2, 200)
    axes.plot(x, np.minimum(gemm, copy * x), color="black", label=f"{copy:.0f} GB/s, {gemm:.0f} GFLOP/s")
    ops = list(dict.fromkeys(r.case.op for r in results))
    for op in ops:
        points = [(i, r) for i, r in zip(intensity, results, strict=True) if r.case.op == op]
        _scatter(axes, [(i, r) for i, r in points if not r.is_ours], color="0.7", s=9, zorder=1)
        ours = [(i, r) for i, r in points if r.is_ours]
        _scatter(axes, ours, label=op, color=f"C{ops.index(op)}", s=28, zorder=2)
    axes.legend(fontsize=8)
    axes.grid(which="major", alpha=0.2)
    figure.savefig(file, dpi=120)


def _scatter(axes: Any, points: Sequence[tuple[float, Result]], **style: Any) -> None:
    axes.scatter([i for i, _ in points], [r.gflop_per_s for _, r in points], **style)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
