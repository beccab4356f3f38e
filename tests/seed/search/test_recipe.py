"""The short recipe, on the small library: every stage runs, resumes, and knows the environment's options."""

import numpy as np
import pytest
from rich.console import Console

from sprout.engine.chat import ChatFormat
from sprout.seed import cli
from sprout.seed.config import load_config
from sprout.seed.envs.search import SearchEnv
from sprout.seed.run import run_recipe, start
from sprout.seed.trajectory import read_trajectories

SHORT = [
    "base.steps=3", "base.checkpoint_every=3", "base.reading_steps=1", "collect.tasks=2",
    "eval.select_tasks=2",
    "eval.report_tasks=2", "train.updates=1", "train.checkpoint_every=1", "rollout.max_response_tokens=24",
    "sft.holdout_fraction=0", "run.stages=[base, collect, annotate, sft, train, eval]",
]  # fmt: skip


def test_both_stages_run(library, tmp_path):
    config = load_config("search-tiny", [f"run.dir={tmp_path}", f"env.options.data={library}", *SHORT])
    run = start(config, Console(quiet=True))
    run_recipe(run)
    (trajectories,) = (list(read_trajectories(file)) for file in run.folder.annotated.glob("*.jsonl"))
    assert len(trajectories) == 4 and all(t.skill.valid and t.env == "search" for t in trajectories)
    assert (run.folder.root / "summary.json").is_file()


def test_lessons_are_a_function_of_their_arguments(library):
    layout = load_config("search-tiny", []).rollout
    turns = []
    for _ in range(2):
        env = SearchEnv(data=str(library), max_turns=3, topk=1)
        chat = ChatFormat.from_tokenizer(env.tokenizer())
        turns.append(env.lesson(chat, layout, seed=1, index=2, episodes=2, transcripts=2))
    for one, two in zip(*turns, strict=True):
        np.testing.assert_array_equal(one.context, two.context)
        np.testing.assert_array_equal(one.action, two.action)
    said = [chat.decode(turn.action.tolist()) for turn in turns[0]]
    assert sum(text.endswith("</answer>") for text in said) == 2
    assert sum('"episode_skill"' in text for text in said) == 2
    assert all(text.endswith(("</search>", "</answer>", "}")) for text in said)
    shown = ["Advice from an earlier attempt" in chat.decode(turn.context.tolist()) for turn in turns[0]]
    assert True in shown and False in shown


@pytest.mark.parametrize("recipe", ["search-tiny", "paper/search-qwen2.5-3b", "paper/search-qwen3-1.7b"])
def test_recipes_plan(library, tmp_path, capsys, recipe):
    options = [f"env.options.data={library}", f"run.dir={tmp_path}"]
    assert cli.execute(["run", recipe, "--dry-run", *options]) == 0
    assert "environment  search\n" in capsys.readouterr().out


def test_missing_data_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("SEARCH_DATA", raising=False)
    assert cli.execute(["run", "search-tiny", f"run.dir={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: search needs its questions") and said.count("\n") == 1
