"""Run by test_ranks.py on every rank: groups that drop at random, trained on; a panel of few tasks."""

import json
import logging
import random
import sys
from pathlib import Path

import gymnasium
import torch

sys.path.insert(0, str(Path(__file__).parent))
from conftest import _decoder, _word_chat

from sprout.engine import parallel
from sprout.engine.generator import Generator
from sprout.engine.optimizer import OptimizerConfig, build_optimizer
from sprout.engine.update import policy_update
from sprout.seed.config import load_config
from sprout.seed.episode import Task
from sprout.seed.objectives import turns_for_update, update_settings
from sprout.seed.rollout import Rollouts, panel
from sprout.seed.trajectory import Skill

SETTINGS = ["rollout.max_response_tokens=2", "rollout.max_context_tokens=200", "rollout.cache_tokens=2000"]
SETTINGS += ["train.rows_per_micro_batch=300", "objective.kl_coef=0"]
TASKS = [Task("train", seed) for seed in range(4)]
MEMBERS = 2


class Rooms(gymnasium.Env):
    """Ends after 1 to 3 turns; the tasks in `broken` raise as often in their first steps as it says."""

    system_prompt = "put it in ."
    broken: dict = {}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.task, self.turn, self.said = seed, 0, 0
        return f"you see pen {seed % 3 + 1} .", {"task": "put a mug .", "family": "put"}

    def step(self, action):
        if self.broken.get(self.task, 0) > 0:
            self.broken[self.task] -= 1
            raise OSError("the socket is gone")
        self.turn += 1
        self.said += len(action)
        done = self.turn >= 1 + self.task % 3
        info = {"valid": True, "success": done and self.said % 2 == 0}
        return f"you see shelf {self.said % 3 + 1} .", float(info["success"]), done, False, info


def main(file, cases):
    parallel.initialize("cpu")
    logging.disable(logging.WARNING)
    chat, config, draw = _word_chat(), load_config(None, SETTINGS), random.Random(0)
    decoder = _decoder(max(chat.encode("end")) + 8)
    parallel.shard_model(decoder, decoder.model.layers, torch.float32)
    optimizer = build_optimizer(decoder, OptimizerConfig(lr=1e-6))
    generator = Generator(decoder, stop_id=chat.stop_id, cache_tokens=config.rollout.cache_tokens)
    rollouts = Rollouts(generator, chat, Rooms, config)
    found = []
    for case in range(cases):
        Rooms.broken = {task.seed: 99 if case == 1 else draw.choice([0, 0, 1, 99]) for task in TASKS}
        try:
            played = rollouts.run(TASKS, MEMBERS, update=case)
        except RuntimeError as error:
            found.append(str(error))
            continue
        skills = [Skill(text="open it .", analyzer="test") for _ in played.trajectories]
        turns = turns_for_update(played.trajectories, skills, config, chat).turns
        result = policy_update(decoder, optimizer, turns, update_settings(config, case, len(turns)))
        ids = [[t.id, t.success, [turn.action for turn in t.turns]] for t in played.trajectories]
        metrics = {name: result.metrics[name] for name in ("seed/opd_loss", "actor/grad_norm")}
        found.append({"played": ids, **played.incidents, **metrics})
    Rooms.broken = {}
    rate, _ = rollouts.evaluate(panel("select", 2), update=0)
    found.append(rate.by_family)
    views = parallel.gather(json.dumps(found))
    assert len(set(views)) == 1, "ranks go on with different results"
    parallel.on_main(Path(file).write_text)(views[0])
    parallel.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
