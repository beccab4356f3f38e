"""The end of gpu_check.sh: one table and one line of JSON from the logs of its steps.

python bench/gpu_check.py FOLDER STEP=CODE=SECONDS...
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HEADLINES = {
    "tests": ("passed", "failed", "skipped"),
    "kernels": (
        "tree_attention_forward_of_ceiling",
        "tree_attention_backward_of_ceiling",
        "selected_logprob_forward_of_ceiling",
        "selected_logprob_full_of_ceiling",
        "adamw__forward_of_ceiling",
        "errors_of_ours",
    ),
    "pair": ("speedup_vs_per_turn", "median_s", "median_s_torch"),
    "generate": ("tokens_per_s", "tokens_per_s_torch", "speedup_vs_hf"),
}


def main(folder: Path, steps: list[str]) -> int:
    """Print the results; 1 if a step failed."""
    results: dict[str, Any] = {}
    for step in steps:
        name, code, seconds = step.split("=")
        log = (folder / f"{name}.log").read_text(errors="replace")
        values = _tests(log) if name == "tests" else _last_json(log)
        results[name] = {"code": int(code), "seconds": int(seconds), **values}
        shown = ", ".join(f"{key} {_short(values[key])}" for key in HEADLINES.get(name, ()) if key in values)
        print(f"{name:<12}{'ok' if code == '0' else f'FAILED ({code})':<14}{seconds:>5} s  {shown}")
    line = json.dumps(results)
    (folder / "gpu_check.json").write_text(line + "\n")
    print(line)
    return int(any(result["code"] for result in results.values()))


def _tests(log: str) -> dict[str, int]:
    """Counts of pytest's closing line."""
    closing = next((line for line in reversed(log.splitlines()) if re.search(r" in [\d.]+s", line)), "")
    found = re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", closing)
    return {"passed": 0, "failed": 0, "skipped": 0} | {kind: int(count) for count, kind in found}


def _last_json(log: str) -> dict[str, Any]:
    """The last object that has a line of its own; empty if the step ended before it."""
    for line in reversed(log.splitlines()):
        if line.startswith("{") and line.endswith("}"):
            values: dict[str, Any] = json.loads(line)
            return values
    return {}


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
