"""`sprout compare`: methods x seeds on one recipe, with intervals over seeds.

Every seed is a run of its own under the recipe's folder, `seed-0/`, with one of the methods; the others train
from its Stage 1 and are measured on its panels (`sprout.seed.stages.compare`), so that differences between
methods are paired. Finished stages are kept: the same command goes on where it was stopped, and more seeds or
methods can be asked for later.

    comparison.json   one row per method
    comparison.png    success along training with its band, and at the end by seed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from sprout.engine import parallel
from sprout.seed.config import config_from, with_method
from sprout.seed.run import Result, run_recipe, start
from sprout.seed.run_dir import RunDir, write_json
from sprout.seed.schema import Config
from sprout.seed.stages.compare import method_config
from sprout.seed.statistics import mean_interval
from sprout.seed.summary import curve

Folders = Mapping[int, Mapping[str, RunDir]]  # by seed, then by method


def compare(config: Config, methods: Sequence[str], seeds: Sequence[int], console: Console) -> Result:
    """Run what is missing, then write and print the comparison. Raises ValueError for repeated names."""
    for name, given in (("--methods", methods), ("--seeds", seeds)):
        if not given or len(set(given)) < len(given):
            raise ValueError(f"{name}: give each once, and at least one; found {', '.join(map(str, given))}")
    root = Path(config.run.dir) / config.run.name
    planned = {seed: seed_config(config, methods, seed) for seed in seeds}
    for method in methods:
        method_config(planned[seeds[0]], method)  # what cannot be compared is said before anything is trained
    folders = {}
    for seed, planned_run in planned.items():
        run = start(planned_run, console)
        run_recipe(run)
        folders[seed] = {
            m: run.folder if m == planned_run.objective.name else run.folder.compared(m) for m in methods
        }
    reference = _success(folders, methods[0])
    rows = [_row(method, folders, reference) for method in methods]
    result = {"recipe": config.run.name, "seeds": list(seeds), "methods": rows}
    write_json(root / "comparison.json", result)
    plot(result, root / "comparison.png")
    console.print(table(result))
    return result


def seed_config(config: Config, methods: Sequence[str], seed: int) -> Config:
    """The run of one seed: the recipe's own method if it is listed, else the first, beside the others."""
    own = config.objective.name if config.objective.name in methods else methods[0]
    values = with_method(config, own).model_dump()
    values["run"] |= {"seed": seed, "name": f"{config.run.name}/seed-{seed}", "resume": True}
    values["compare"] = tuple(method for method in methods if method != own)
    return config_from(values)


def _row(method: str, folders: Folders, reference: list[float]) -> dict[str, Any]:
    """What the seeds say of `method`: success by seed and on average, its lead over the first, its cost."""
    mine = [by_method[method] for by_method in folders.values()]
    success = _success(folders, method)
    trained = [_finished(folder, "train") for folder in mine]
    return {
        "method": method,
        "success": success,
        "mean": mean_interval(success),
        "lead": mean_interval([a - b for a, b in zip(success, reference, strict=True)]),
        "macro": mean_interval([_final(folder)["macro_success_rate"] for folder in mine]),
        "updates": [found["updates"] for found in trained],
        "training_s": float(np.mean([found["training_s"] for found in trained])),
        "tokens": float(np.mean([_tokens(folder) for folder in mine])),
        "curves": [_curve(folder) for folder in mine],
    }


def _success(folders: Folders, method: str) -> list[float]:
    return [_final(by_method[method])["success_rate"] for by_method in folders.values()]


def _finished(folder: RunDir, stage: str) -> Result:
    found = folder.result(stage)
    if found is None:
        raise ValueError(f"{folder.root} has no finished {stage} stage; put {stage} into run.stages")
    return found


def _final(folder: RunDir) -> dict[str, Any]:
    final: dict[str, Any] = _finished(folder, "eval")["final"]
    return final


def _tokens(folder: RunDir) -> float:
    """Tokens of all updates, contexts included."""
    metrics = folder.root / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines() if metrics.is_file() else []
    return sum(orjson.loads(line).get("perf/total_num_tokens", 0.0) for line in lines)


def _curve(folder: RunDir) -> list[tuple[int, float]]:
    return [(point["updates"], point["success"]) for point in curve(folder)]


def table(result: Mapping[str, Any]) -> Table:
    """One line per method; intervals are 95 % of Student's t over seeds, absent with one seed."""
    first, seeds = result["methods"][0]["method"], result["seeds"]
    text = Table(title=f"{result['recipe']}: report panel, seeds {', '.join(map(str, seeds))}")
    headings = ("method", "success", f"minus {first}", "macro", "by seed", "updates", "training s", "tokens")
    for heading in headings:
        text.add_column(heading, justify="left" if heading == "method" else "right")
    for row in result["methods"]:
        text.add_row(
            row["method"],
            _interval(row["mean"]),
            "" if row["method"] == first else _interval(row["lead"]),
            f"{row['macro']['mean']:.1%}",
            " ".join(f"{value:.3f}" for value in row["success"]),
            " ".join(map(str, sorted(set(row["updates"])))),
            f"{row['training_s']:.0f}",
            f"{row['tokens']:.3g}",
        )
    return text


def _interval(found: Mapping[str, Any]) -> str:
    if found["ci95"] is None:
        return f"{found['mean']:.1%}"
    low, high = found["ci95"]
    return f"{found['mean']:.1%} ({low:.1%} to {high:.1%})"


@parallel.on_main
def plot(result: Mapping[str, Any], file: Path) -> None:
    """Select-panel curves (mean, range over seeds) beside the report panel's success by seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    along, final = figure.subplots(1, 2)
    for number, row in enumerate(result["methods"]):
        colour = f"C{number}"
        updates, values = _common(row["curves"])
        if updates:
            along.plot(updates, values.mean(0), color=colour, label=row["method"])
            along.fill_between(updates, values.min(0), values.max(0), color=colour, alpha=0.12)
        final.plot([number] * len(row["success"]), row["success"], ".", color=colour)
        low, high = row["mean"]["ci95"] or (row["mean"]["mean"],) * 2
        middle = row["mean"]["mean"]
        final.errorbar(number, middle, [[middle - low], [high - middle]], fmt="_", color=colour, capsize=6)
    along.set(xlabel="updates", ylabel="success, select panel")
    final.set(ylabel="success, report panel")
    final.set_xticks(range(len(result["methods"])), [row["method"] for row in result["methods"]], rotation=20)
    along.legend(fontsize=8)
    figure.savefig(file, dpi=120)


def _common(curves: Iterable[Sequence[tuple[int, float]]]) -> tuple[list[int], np.ndarray]:
    """Updates that every seed was measured after, and success [seeds, updates] there."""
    found = [dict(curve) for curve in curves]
    updates = sorted(set.intersection(*(set(curve) for curve in found)))
    return updates, np.array([[curve[update] for update in updates] for curve in found])
