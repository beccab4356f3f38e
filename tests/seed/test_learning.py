"""End to end: a short Stage 2 from the shipped base must act better on a panel it never trains on."""

import pytest
from rich.console import Console

from sprout.seed.config import load_config
from sprout.seed.run import run_recipe, start

SHORT = [
    "run.stages=[train]",
    "sft.epochs=0",
    "analyzer.kind=scripted",
    "train.updates=24",
    "train.lr=4.0e-4",
    "eval.every=0",
    "eval.select_tasks=256",
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_short_run_raises_success_over_its_base(tmp_path):
    config = load_config("quickstart", [f"run.dir={tmp_path}", *SHORT])
    curve = run_recipe(start(config, Console(quiet=True)))["curve"]
    assert [point["updates"] for point in curve] == [0, 24]
    assert curve[-1]["success"] > curve[0]["success"] + 0.03
