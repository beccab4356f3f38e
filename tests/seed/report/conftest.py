"""A run folder written by hand: small, quick, and as odd as a test wants it."""

import numpy as np
import orjson
import pytest

from sprout.engine.metrics import MetricsLogger
from sprout.engine.update import TurnScores
from sprout.seed.config import dump_config, load_config
from sprout.seed.run_dir import RunDir, write_json
from sprout.seed.scores import write_scores
from sprout.seed.trajectory import Skill, write_trajectories

RATE = {"success_rate": 0.5, "macro_success_rate": 0.4, "ci95": [0.3, 0.7], "tasks": 8}
RATE |= {"by_family": {"heat": {"successes": 3, "tasks": 4}, "cool": {"successes": 1, "tasks": 4}}}


def scores_of(trajectory, deltas):
    """One `TurnScores` a turn, with the same Delta on all of its tokens."""
    for turn, delta in zip(trajectory.turns, deltas, strict=True):
        l_theta = np.asarray(turn.logprobs, np.float32)
        full = np.full(len(l_theta), delta, np.float32)
        gate = 1 / (1 + np.exp(-5 * full))
        yield TurnScores(l_theta, np.ones_like(l_theta), full * 0 + 0.25, l_theta + full, full, gate)


@pytest.fixture
def write_run(make_trajectory, bpe_chat):
    """Writes a run folder: `deltas` by update hold, per trajectory, one Delta a turn."""

    def write(root, deltas, *overrides, tokenizer=True, **fields):
        folder = RunDir(root)
        root.mkdir(parents=True)
        if tokenizer:
            folder.stage1_model.mkdir(parents=True)
            (folder.stage1_model / "tokenizer.json").write_text(bpe_chat.text._backend.to_str())
        config = load_config(None, ["train.updates=8", *overrides])
        folder.config_file.write_text(dump_config(config))
        logger = MetricsLogger(root, tensorboard=False)
        for update, rows in deltas.items():
            logger.log(
                update, {"episode/success_rate": update / 10, "seed/delta_mean": 0.1, "actor/lr": 1e-3}
            )
            trajectories = [trajectory(make_trajectory, update, i, row, fields) for i, row in enumerate(rows)]
            write_trajectories(folder.trajectories(update), trajectories)
            owners = [(t.id, n) for t in trajectories for n in range(len(t.turns))]
            scored = [s for t, row in zip(trajectories, rows, strict=True) for s in scores_of(t, row)]
            write_scores(folder.scores(update), owners, scored)
            write_json(folder.evaluation(update), {"updates": update, "student": RATE})
        return folder

    return write


def trajectory(make, update, member, deltas, fields):
    pairs = [(list(range(3, 6 + 3 * turn)), [7, 8, 2]) for turn in range(len(deltas))]
    skill = Skill(text="open it", analyzer="policy", valid=member % 2 == 0, problem="", raw="raw words")
    values = {"update": update, "member": member, "success": member % 2 == 1, "reward": float(member % 2)}
    values |= {"skill": skill, "teacher_skill": skill.text if skill.valid else "", "task": "put a mug in it"}
    return make(pairs, **(values | fields))


@pytest.fixture
def edit_lines():
    """Rewrites the lines of a JSONL file by a function of the parsed objects."""

    def edit(file, change):
        lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
        change(lines)
        file.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))

    return edit
