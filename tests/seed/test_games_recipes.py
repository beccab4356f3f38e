"""The short recipes of Sokoban and EZPoints: lessons, and every stage."""

import numpy as np
import orjson
import pytest
from rich.console import Console

from sprout.engine.chat import ChatFormat
from sprout.seed.config import load_config
from sprout.seed.envs import make_env
from sprout.seed.run import run_recipe, start
from sprout.seed.trajectory import read_trajectories

GAMES = ["sokoban", "ezpoints"]
SHORT = [
    "env.max_turns=3", "base.steps=1", "base.checkpoint_every=1", "base.reading_steps=1", "collect.tasks=2",
    "eval.select_tasks=2", "eval.report_tasks=2", "eval.every=1", "train.updates=1",
    "train.checkpoint_every=1", "rollout.max_response_tokens=4", "sft.holdout_fraction=0",
    "run.stages=[base, collect, annotate, sft, train, eval]",
]  # fmt: skip


@pytest.mark.parametrize("game", GAMES)
def test_both_stages_run(game, tmp_path):
    run = start(load_config(f"{game}-tiny", [f"run.dir={tmp_path}", *SHORT]), Console(quiet=True))
    run_recipe(run)
    (trajectories,) = (list(read_trajectories(file)) for file in run.folder.annotated.glob("*.jsonl"))
    assert len(trajectories) == 4 and all(t.skill.valid and t.env == game for t in trajectories)
    metrics = [orjson.loads(line) for line in (run.folder.root / "metrics.jsonl").read_bytes().splitlines()]
    assert np.isfinite(metrics[-1]["val/mean_reward"])
    assert (run.folder.root / "summary.json").is_file()


@pytest.mark.parametrize("game", GAMES)
def test_lessons_are_a_function_of_their_arguments(game):
    config = load_config(f"{game}-tiny")
    batches = []
    for _ in range(2):
        env = make_env(game, **config.env.options)
        chat = ChatFormat.from_tokenizer(env.tokenizer())
        sizes = dict(seed=1, index=2, episodes=6, transcripts=2, reports=1)
        batches.append(env.lesson(chat, config.rollout, **sizes))
    for one, two in zip(*batches, strict=True):
        np.testing.assert_array_equal(one.context, two.context)
        np.testing.assert_array_equal(one.action, two.action)
    said = [chat.decode(turn.action.tolist()) for turn in batches[0]]
    shown = ["Advice from an earlier attempt" in chat.decode(turn.context.tolist()) for turn in batches[0]]
    assert sum('"episode_skill"' in text for text in said) == 3
    assert True in shown and False in shown
    commands = {"up", "down", "left", "right"} if game == "sokoban" else {"2", "3", "10", "+", "*", "="}
    assert len({text for text in said if "episode_skill" not in text} & commands) > 2
