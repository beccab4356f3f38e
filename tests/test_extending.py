"""The examples of EXTENDING.md are run as they stand."""

import re
from pathlib import Path

import pytest
from gymnasium.utils.env_checker import check_env

from sprout.seed.config import load_config, with_method
from sprout.seed.methods import METHODS

TEXT = (Path(__file__).parents[1] / "EXTENDING.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def examples():
    names = {}
    before = dict(METHODS)
    for block in BLOCKS:
        exec(block, names)
    yield names
    METHODS.clear()
    METHODS.update(before)


def test_every_example_is_short():
    assert len(BLOCKS) == 4
    assert max(len(block.splitlines()) for block in BLOCKS) <= 40


def test_the_environment_keeps_the_contract(examples):
    env = examples["HigherLowerEnv"](highest=9)
    check_env(env, skip_render_check=True, skip_close_check=True)
    for split in ("train", "select", "report"):
        observation, info = env.reset(seed=3, options={"split": split})
        assert {"task", "family", "split", "valid", "success"} <= info.keys() and info["split"] == split
        assert observation == "It is between 1 and 9."
        number = env.number
        env.reset(seed=3, options={"split": split})
        assert env.number == number
        assert env.step("pen")[0] == "A number, please."
        observation, reward, terminated, _, info = env.step(str(number))
        assert (observation, reward, terminated, info["success"]) == ("Yes.", 1.0, True, True)


def test_the_analyzer_writes_one_skill_per_trajectory(examples):
    chat = type("Chat", (), {"encode": staticmethod(str.split)})
    analyzer = examples["LastActionAnalyzer"](chat)
    turn = type("Turn", (), {"response": "open it"})
    won, lost = (type("T", (), {"success": success, "turns": [turn]}) for success in (True, False))
    skills = analyzer.analyze([won, lost])
    assert (skills[0].text, skills[0].tokens, skills[1].valid) == ("open it", 2, False)


def test_the_method_is_one_of_them(examples):
    config = with_method(load_config(None), "gentle-seed")
    assert (config.objective.beta, config.objective.opd_baseline) == (1.0, "mean")
