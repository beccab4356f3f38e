"""Stage 1, second step: an external analyzer reads every collected trajectory and writes a skill."""

from __future__ import annotations

from sprout.seed.analyzer.server import usage
from sprout.seed.player import Player
from sprout.seed.policy import load_policy
from sprout.seed.run import Result, Run
from sprout.seed.stages.collect import stored
from sprout.seed.trajectory import Trajectory, read_trajectories, write_trajectories


def run_stage(run: Run) -> Result:
    """Leaves the trajectories with their skills in stage1/annotated, one file for each file of `collect`."""
    config = run.config
    player = Player(load_policy(run.base_model(), config), config, run.console)
    analyzer = player.analyzer(config.analyzer.stage1)
    annotated: list[Trajectory] = []
    stored(run.folder.collected)
    for file in sorted(run.folder.collected.glob("*.jsonl")):
        target = run.folder.annotated / file.name
        if not target.is_file():
            trajectories = list(read_trajectories(file))
            for trajectory, skill in zip(trajectories, analyzer.analyze(trajectories), strict=True):
                trajectory.skill = skill
            write_trajectories(target, trajectories)
        annotated += read_trajectories(target)
    skills = [trajectory.skill for trajectory in annotated if trajectory.skill is not None]
    right = player.skills_right(annotated, skills)
    valid = sum(skill.valid for skill in skills) / max(len(skills), 1)
    return {"skills": len(skills), "valid_rate": valid, "right_rate": right, **usage(analyzer)}
