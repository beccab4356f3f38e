"""What a run measured along training, thinned: the page stays small however long the run was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sprout.engine.metrics import METRICS_FILE, iter_metrics
from sprout.seed.run_dir import RunDir, read_json
from sprout.seed.statistics import wilson_interval

Item = TypeVar("Item")
POINTS = 400
NAMES = 200


def metrics(folder: RunDir, points: int = POINTS) -> dict[str, Any]:
    """Columns of metrics.jsonl: `step`, every number as `values`, and the `stride` between kept updates."""
    file = folder.root / METRICS_FILE
    lines, stride = thinned(iter_metrics(file), points) if file.is_file() else ([], 1)
    names = sorted({name for line in lines for name, value in line.items() if _is_number(value)} - {"step"})
    values = {name: [_rounded(line.get(name)) for line in lines] for name in names[:NAMES]}
    return {"step": [line["step"] for line in lines], "values": values, "stride": stride}


def evaluations(folder: RunDir, points: int = POINTS) -> list[dict[str, Any]]:
    """Success on the select panel with its 95 % interval, of the policy and, if measured, of its teacher."""
    files, _ = thinned(sorted((folder.root / "evals").glob("[0-9]*.json")), points)
    return [evaluation for file in files if (evaluation := _evaluation(file)) is not None]


def thinned(items: Iterable[Item], most: int) -> tuple[list[Item], int]:
    """Every stride-th item and the last one, at most `most` + 1; the stride is a power of two.

    Holds no more than it returns. Items that are kept stay kept while more of them come.
    """
    kept: list[Item] = []
    stride, last, number = 1, None, -1
    for number, item in enumerate(items):
        last = item
        if number % stride == 0:
            kept.append(item)
        if len(kept) > most:
            kept, stride = kept[::2], stride * 2
    if last is not None and number % stride:
        kept.append(last)
    return kept, stride


def _evaluation(file: Path) -> dict[str, Any] | None:
    record = read_json(file)
    if record is None:
        return None
    try:
        return {
            "updates": record["updates"],
            "student": _panel(record["student"]),
            "teacher": _panel(record["teacher"]) if "teacher" in record else None,
        }
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file}: not an evaluation ({error!r}); delete it to leave it out") from None


def _panel(panel: Mapping[str, Any]) -> dict[str, Any]:
    low, high = panel["ci95"]
    return {
        "success": panel["success_rate"],
        "low": low,
        "high": high,
        "macro": panel["macro_success_rate"],
        "reward": panel.get("mean_reward"),
        "tasks": panel["tasks"],
        "families": dict(_families(panel["by_family"])),
    }


def _families(by_family: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for family, count in by_family.items():
        low, high = wilson_interval(count["successes"], count["tasks"])
        rate = count["successes"] / max(count["tasks"], 1)
        yield family, {"success": rate, "low": low, "high": high, "tasks": count["tasks"]}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rounded(value: Any) -> float | None:
    return float(f"{value:.5g}") if _is_number(value) else None
