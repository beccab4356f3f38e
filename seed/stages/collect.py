"""Stage 1, first step: the base policy plays M training tasks K0 times each, written to disk in chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from sprout.seed import incidents
from sprout.seed.player import Player
from sprout.seed.policy import load_policy
from sprout.seed.rollout import training_tasks
from sprout.seed.run import Result, Run
from sprout.seed.run_dir import read_json, write_json
from sprout.seed.statistics import success_rate
from sprout.seed.trajectory import Trajectory, read_trajectories, write_trajectories

STAGE_1 = 0  # the update that Stage 1's tasks and samples count as; those of Stage 2 begin at 1
TASKS_PER_CHUNK = 32


def run_stage(run: Run) -> Result:
    """Leaves trajectories in stage1/collected, chunk by chunk; a chunk that is there is not played again."""
    config = run.config
    tasks = training_tasks(config.run.seed, STAGE_1, config.collect.tasks)
    player: Player | None = None
    for number, first in enumerate(range(0, len(tasks), TASKS_PER_CHUNK)):
        file = chunk(run.folder.collected, number)
        if not file.is_file():
            player = player or Player(load_policy(run.base_model(), config), config, run.console)
            chosen = tasks[first : first + TASKS_PER_CHUNK]
            result = player.rollout(chosen, config.collect.rollouts_per_task, STAGE_1)
            write_json(_incidents_file(file), incidents.counted(result.incidents))
            write_trajectories(file, result.trajectories)
    rate = success_rate(stored(run.folder.collected))
    return {
        "trajectories": rate.episodes,
        "tasks": len(tasks),
        "success_rate": rate.overall,
        incidents.KEY: incidents.counted(_stored_incidents(run.folder.collected)),
    }


def chunk(folder: Path, number: int) -> Path:
    """File of the trajectories of chunk `number` of the tasks."""
    return folder / f"{number:06d}.jsonl"


def _incidents_file(chunk: Path) -> Path:
    return chunk.with_suffix(".incidents.json")


def _stored_incidents(folder: Path) -> Counter[str]:
    """What went wrong in all chunks of a folder, also before a run was interrupted."""
    found = Counter[str]()
    for file in sorted(folder.glob("*.jsonl")):
        found.update(read_json(_incidents_file(file)) or {})
    return found


def stored(folder: Path) -> Iterator[Trajectory]:
    """All trajectories of a folder of chunks. Raises FileNotFoundError if it has none."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no trajectories: run the stage that writes them first")
    return read_trajectories(*files)
