"""Everything the page shows, as one JSON object whose size does not grow with the runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from sprout.engine.terminal import PlainConsole
from sprout.seed.report.audit import DELTA_BINS, GATE_BINS, Known, Limits, audit
from sprout.seed.report.curves import evaluations, metrics
from sprout.seed.report.pieces import Pieces
from sprout.seed.report.runs import ReportRun, find_runs
from sprout.seed.run import Run
from sprout.seed.statistics import mean_interval
from sprout.seed.summary import summarize

SUMMARY = (
    "success_base",
    "success_base_select",
    "success_base_own_skill",
    "success_base_oracle_skill",
    "success_sft",
    "success_stage1_own_skill",
    "success_final",
    "macro_success_final",
    "ci95_final",
    "report_tasks",
    "stage1_skill_valid",
    "stage1_skill_right",
    "training_s",
    "wall_s",
)


def report_data(
    folders: Sequence[Path], limits: Limits, console: Console | None = None, known: Known | None = None
) -> dict[str, Any]:
    """The runs in `folders`, in that order; `known` saves reading an update's trajectories twice.

    Raises FileNotFoundError for a folder that holds no run, and
    ValueError naming the file for a configuration, metrics or an evaluation that cannot be read."""
    runs = find_runs(folders)
    share = replace(limits, bytes=limits.bytes // len(runs))
    shown = [_run(run, share, console or PlainConsole(quiet=True), known) for run in runs]
    return {
        "bins": {"delta": DELTA_BINS.tolist(), "gate": GATE_BINS.tolist()},
        "methods": list(_over_seeds(shown)),
        "runs": shown,
    }


def _over_seeds(runs: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Mean success, with its interval, of methods with several seeds, where every seed was evaluated."""
    by_method: dict[str, dict[int, Mapping[str, Any]]] = {}
    for run in runs:
        by_method.setdefault(run["method"], {})[run["seed"]] = run
    for method, seeds in by_method.items():
        if len(seeds) < 2:
            continue
        curves = [{e["updates"]: e["student"]["success"] for e in run["evals"]} for run in seeds.values()]
        points = []
        for updates in sorted(set.intersection(*map(set, curves))):
            found = mean_interval([curve[updates] for curve in curves])
            low, high = found["ci95"]
            points.append({"x": updates, "y": found["mean"], "low": max(0.0, low), "high": min(1.0, high)})
        yield {"method": method, "seeds": len(seeds), "points": points}


def _run(run: ReportRun, limits: Limits, console: Console, known: Known | None) -> dict[str, Any]:
    pieces = Pieces(run.tokenizer())
    found = audit(run.folder, run.name, pieces, limits, console, known)
    if found.cases and not pieces.known:
        found.note(f"{run.folder.root} holds no tokenizer yet: tokens are shown as ids")
    measured = metrics(run.folder)
    evals = evaluations(run.folder)
    summary = summarize(Run(run.config, run.folder, run.origin))
    return {
        "name": run.name,
        "method": run.config.objective.name,
        "seed": run.config.run.seed,
        "beta": run.config.objective.beta,
        "updates": measured["step"][-1] if measured["step"] else 0,
        "planned": run.config.train.updates,
        "finished": run.folder.result("train") is not None,
        "metrics": measured,
        "evals": evals,
        "summary": {name: summary[name] for name in SUMMARY},
        "audit": asdict(found),
    }
