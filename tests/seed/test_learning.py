"""End to end: Stage 2 from the shipped base must act better on a panel it never trains on."""

import pytest
from rich.console import Console

from sprout.seed.config import load_config
from sprout.seed.run import run_recipe, start

SHORT = ["run.stages=[train, eval]", "objective.name=no-sft", "eval.every=0", "eval.select_tasks=16"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_raises_success_over_its_base(tmp_path):
    config = load_config("quickstart", [f"run.dir={tmp_path}", *SHORT])
    summary = run_recipe(start(config, Console(quiet=True)))
    assert summary["updates"] == 40 and summary["report_tasks"] == 384
    assert summary["success_final"] > summary["success_base"] + 0.05
