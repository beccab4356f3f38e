"""The closing evaluation: the base, the Stage-1 model and the final model on the report panel.

The report panel is used here only, never for choosing anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from sprout.seed.player import Player
from sprout.seed.policy import load_policy
from sprout.seed.run import Result, Run
from sprout.seed.schema import Config
from sprout.seed.stages.train import final_model


def run_stage(run: Run) -> Result:
    """Success by model; a run that starts from another's Stage 1 measures its own final model only."""
    config = run.config
    result = {}
    if run.origin == run.folder:
        base = _player(config, run.base_model(), run)
        result["base"] = _record(base, "none")
        if hasattr(base.environment, "oracle_skill"):
            result["base_oracle_skill"] = _record(base, "oracle")
        if config.sft.epochs:
            result["sft"] = _record(_player(config, run.start_model(), run), "none")
    result["final"] = _record(_player(config, final_model(run), run), config.eval.skill)
    for name, record in result.items():
        run.say(f"  {name}: {record['success_rate']:.1%} of {record['tasks']}")
    return result


def evaluate_model(config: Config, model: str | None, split: str) -> str:
    """JSON of one evaluation as the eval section says; `model` None takes the run's final one."""
    from sprout.seed.run_dir import RunDir

    if split not in ("select", "report"):
        raise ValueError(f"--panel: {split!r} is neither select nor report")
    folder = RunDir(Path(config.run.dir) / config.run.name)
    run = Run(config, folder, folder)
    player = _player(config, model or final_model(run), run)
    count = config.eval.select_tasks if split == "select" else config.eval.report_tasks
    record = player.evaluate("select" if split == "select" else "report", count, config.eval.skill).record()
    return orjson.dumps(record, option=orjson.OPT_INDENT_2).decode()


def _player(config: Config, model: str | Path, run: Run) -> Player:
    return Player(load_policy(model, config), config, run.console)


def _record(player: Player, shown: Any) -> dict[str, Any]:
    return player.evaluate("report", player.config.eval.report_tasks, shown).record()
