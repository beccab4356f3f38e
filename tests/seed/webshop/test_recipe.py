"""The short recipe: every stage runs in the shop, and evaluations report the score beside success."""

import orjson
from rich.console import Console

from sprout.seed.config import load_config
from sprout.seed.run import run_recipe, start
from sprout.seed.trajectory import read_trajectories

SHORT = [
    "env.options.products=100", "env.max_turns=3", "base.steps=1", "base.checkpoint_every=1",
    "base.reading_steps=1", "collect.tasks=2", "eval.select_tasks=2", "eval.report_tasks=2",
    "eval.every=1", "train.updates=1", "train.checkpoint_every=1",
    "rollout.max_response_tokens=24", "sft.holdout_fraction=0",
    "run.stages=[base, collect, annotate, sft, train, eval]",
]  # fmt: skip


def test_both_stages_run(tmp_path):
    run = start(load_config("webshop-tiny", [f"run.dir={tmp_path}", *SHORT]), Console(quiet=True))
    run_recipe(run)
    (trajectories,) = (list(read_trajectories(file)) for file in run.folder.annotated.glob("*.jsonl"))
    assert len(trajectories) == 4 and all(t.skill.valid and t.env == "webshop" for t in trajectories)
    metrics = [orjson.loads(line) for line in (run.folder.root / "metrics.jsonl").read_bytes().splitlines()]
    assert 0 <= metrics[-1]["val/mean_reward"] <= 1 and 0 <= metrics[-1]["episode/reward/mean"] <= 1
    assert run.folder.result("eval")["final"]["mean_reward"] is not None
