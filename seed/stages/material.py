"""Is there anything for Stage 2 to build on? Success with and without skills before any update.

The base without a skill, with its own episode's skill (by the environment's scripted analyzer) and with an
oracle's; the Stage-1 model without a skill and with the skills it writes itself: where its teacher starts.
"""

from __future__ import annotations

from typing import Any

from sprout.seed import incidents
from sprout.seed.player import Player
from sprout.seed.policy import load_policy
from sprout.seed.run import Result, Run


def run_stage(run: Run) -> Result:
    """Success on the select panel, by policy and skill; `stage1_skill_right` is of skills on that panel."""
    base = _player(run, run.base_model())
    count = run.config.eval.select_tasks
    plain = base.evaluate("select", count)
    result: dict[str, Any] = {"base": plain.record()}
    if hasattr(base.environment, "scripted_analyzer"):
        result["base_own_skill"] = base.evaluate("select", count, "own", plain).record()
    if hasattr(base.environment, "oracle_skill"):
        result["base_oracle_skill"] = base.evaluate("select", count, "oracle").record()
    if run.config.sft.epochs:
        result |= _stage1(_player(run, run.start_model()), count)
    for name, record in result.items():
        if name != incidents.KEY and isinstance(record, dict):
            run.say(f"  {name}: {record['success_rate']:.1%} of {record['tasks']}")
    return result


def _stage1(player: Player, count: int) -> dict[str, Any]:
    plain = player.evaluate("select", count)
    own = player.evaluate("select", count, "policy", plain)
    right = player.skills_right(plain.trajectories, [own.skills[t.seed] for t in plain.trajectories])
    return {
        "stage1": plain.record(),
        "stage1_own_skill": own.record(),
        "stage1_skill_right": right,
        incidents.KEY: incidents.counted(player.take_incidents()),
    }


def _player(run: Run, model: Any) -> Player:
    return Player(load_policy(model, run.config), run.config, run.console)
