"""End to end: a short run from the shipped base must act better on a panel it never trains on."""

import pytest
from rich.console import Console

from sprout.seed.config import load_config
from sprout.seed.run import run_recipe, start

SHORT = [
    "collect.tasks=32",
    "train.updates=16",
    "eval.every=0",
    "eval.select_tasks=192",
    "eval.report_tasks=1",
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["seed", "grpo"])
def test_a_short_run_raises_success_over_its_base(tmp_path, method):
    overrides = [f"run.dir={tmp_path}", f"objective.name={method}", *SHORT]
    summary = run_recipe(start(load_config("quickstart", overrides), Console(quiet=True)))
    assert summary["curve"][-1]["updates"] == 16
    assert summary["curve"][-1]["success"] > summary["success_base_select"] + 0.05
