"""The closing summary of a run: summary.json and a printed table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from sprout.seed import incidents
from sprout.seed.run import STAGES, Result, Run
from sprout.seed.run_dir import RunDir, read_json, write_json


def close(run: Run) -> Result:
    """Write summary.json from what the stages found, and print it."""
    summary = summarize(run)
    write_json(run.folder.summary_file, summary)
    run.console.print(success_table(summary))
    if summary["comparisons"]:
        run.console.print(comparison_table(summary))
    if happened := incidents.describe(summary[incidents.KEY]):
        run.say(f"environments: {happened}")
    run.say(f"summary: {run.folder.summary_file}")
    return summary


def summarize(run: Run) -> Result:
    """Everything worth keeping; None where the recipe did not measure it."""
    found = {name: run.folder.result(name) or {} for name in STAGES}
    panel, material, train = found["eval"], found["material"], found["train"]
    final = panel.get("final", {})
    return {
        "method": run.config.objective.name,
        "seed": run.config.run.seed,
        "success_base": _rate(panel, "base"),
        "success_base_oracle_skill": _rate(panel, "base_oracle_skill"),
        "success_base_own_skill": _rate(material, "base_own_skill"),
        "success_base_select": _rate(material, "base"),
        "stage1_skill_right": found["sft"].get("skill_right_rate"),
        "stage1_skill_valid": found["sft"].get("skill_valid_rate"),
        "success_stage1_own_skill": _rate(material, "stage1_own_skill"),
        "success_sft": _rate(panel, "sft"),
        "success_final": final.get("success_rate"),
        "macro_success_final": final.get("macro_success_rate"),
        "ci95_final": final.get("ci95"),
        "report_tasks": final.get("tasks"),
        "updates": train.get("updates", 0),
        "training_s": train.get("training_s", 0.0),
        "wall_s": sum(result.get("wall_s", 0.0) for result in found.values()),
        "curve": curve(run.folder),
        "comparisons": _comparisons(run, found["compare"]),
        incidents.KEY: incidents.total({name: found[name] for name in STAGES if name != "compare"}),
        "stages": found,
    }


def curve(folder: RunDir) -> list[dict[str, Any]]:
    """Success along Stage 2 on the select panel."""
    records = (read_json(file) for file in sorted((folder.root / "evals").glob("[0-9]*.json")))
    return [
        {
            "updates": record["updates"],
            "success": record["student"]["success_rate"],
            "macro_success": record["student"]["macro_success_rate"],
            "with_own_skill": record.get("teacher", {}).get("success_rate"),
        }
        for record in records
        if record is not None
    ]


def success_table(summary: Mapping[str, Any]) -> Table:
    """Success from the base to the final model."""
    table = Table(title="success on unseen tasks", title_justify="left")
    for heading in ("policy", "success", "panel"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for label, name, panel in _ROWS:
        if summary[name] is not None:
            table.add_row(label, _percent(summary[name]), panel)
    for point in summary["curve"]:
        table.add_row(f"  after {point['updates']} updates", _percent(point["success"]), "select")
    if summary["success_final"] is not None:
        low, high = summary["ci95_final"]
        interval = f"{summary['method']}, {summary['updates']} updates ({low:.1%} to {high:.1%})"
        table.add_row(interval, _percent(summary["success_final"]), "report")
        table.add_row("  mean over families", _percent(summary["macro_success_final"]), "report")
    return table


def comparison_table(summary: Mapping[str, Any]) -> Table:
    """This run's method beside the others."""
    table = Table(title="same Stage 1, same seeds, report panel", title_justify="left")
    for heading in ("method", "updates", "training s", "success", "95 % interval", "macro"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in summary["comparisons"]:
        low, high = row["ci95"]
        table.add_row(
            row["method"],
            str(row["updates"]),
            f"{row['training_s']:.0f}",
            _percent(row["success"]),
            f"{low:.1%} to {high:.1%}",
            _percent(row["macro_success"]),
        )
    return table


_ROWS = (
    ("base", "success_base", "report"),
    ("base with an oracle's skill", "success_base_oracle_skill", "report"),
    ("base", "success_base_select", "select"),
    ("base with its own episode's skill", "success_base_own_skill", "select"),
    ("after Stage 1, with its own skill", "success_stage1_own_skill", "select"),
    ("after Stage 1", "success_sft", "report"),
)


def _comparisons(run: Run, compared: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per method, this run's own first; empty when nothing was compared."""
    own = {"train": run.folder.result("train"), "eval": run.folder.result("eval")}
    methods = {name: found for name, found in compared.items() if isinstance(found, dict)}
    if not methods or None in own.values():
        return []
    return list(_rows({run.config.objective.name: own, **methods}))


def _rows(methods: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for method, found in methods.items():
        final = found["eval"]["final"]
        yield {
            "method": method,
            "updates": found["train"]["updates"],
            "training_s": found["train"]["training_s"],
            "success": final["success_rate"],
            "macro_success": final["macro_success_rate"],
            "ci95": final["ci95"],
        }


def _rate(found: Mapping[str, Any], name: str) -> float | None:
    rate: float | None = found.get(name, {}).get("success_rate")
    return rate


def _percent(value: float) -> str:
    return f"{value:.1%}"
