"""`sprout play`: a person's episode, and what ends it."""

import io
import sys

import pytest

from sprout.seed import cli
from sprout.seed.envs import make_env
from sprout.seed.play import parse_options, play


@pytest.fixture
def sprout(capfd, monkeypatch):
    """Runs a command with scripted stdin: (exit code, stdout, stderr)."""

    def run(*arguments, typed=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = cli.execute(list(arguments))
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_an_episode_is_played_to_its_end(sprout):
    env = make_env("sokoban")
    env.reset(seed=3, options={"split": "select"})
    moves = env.level.solution()
    code, out, err = sprout(
        "play", "sokoban", "--seed", "3", "--split", "select", typed="\n".join(["jump", "", *moves, "up"])
    )
    assert code == 0 and not err
    assert "Task (" in out and "Push every box" in out and "Commands: " in out and "still" in out
    assert out.count("(not possible)") == 1 and "reward -0.1 (not possible)" in out
    total = 11 - 0.1 * (len(moves) + 1)
    assert out.splitlines()[-1] == f"done: success after {len(moves) + 1} turns, reward {total:g}"
    assert out.count("# # # # # #") == 2 * (len(moves) + 2)


@pytest.mark.parametrize("typed", ["", "look\n", "look\nQuit\nlook\n", "look"])
@pytest.mark.parametrize("name", ["household", "ezpoints"])
def test_quit_and_the_end_of_input_end_it_cleanly(sprout, name, typed):
    code, out, err = sprout("play", name, typed=typed)
    assert code == 0 and not err
    turns = "1 turn" if typed else "0 turns"
    assert out.splitlines()[-1].endswith(f"ended after {turns}, reward 0")


def test_turns_run_out_and_losing(sprout):
    code, out, _ = sprout("play", "sokoban", "max_turns=2", typed="still\nstill\nstill\n")
    assert code == 0 and out.splitlines()[-1] == "done: out of turns after 2 turns, reward -0.2"
    code, out, _ = sprout("play", "ezpoints", "penalty=1", typed="=\n")
    assert code == 0 and out.splitlines()[-1] == "done: no success after 1 turn, reward -1"


def test_a_given_format_is_kept(sprout):
    code, out, _ = sprout("play", "sokoban", "format=action", typed="still\n<action>still</action>\n")
    assert code == 0 and out.count("(not possible)") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsuch"], "unknown environment 'nonsuch'"),
        (["sokoban", "boxes"], "write key=value"),
        (["sokoban", "a.b=1"], "write key=value"),
        (["sokoban", "boxes=[1"], "not a YAML value"),
        (["sokoban", "boxs=1"], "does not accept"),
        (["sokoban", "boxes=9"], "boxes must be within 1 to 3"),
        (["sokoban", "--split=test"], "unknown split 'test'"),
        (["household", "--split=test"], "split"),
        (["ezpoints", "penalty=much"], "does not accept"),
    ],
)
def test_errors_are_one_line(sprout, arguments, words):
    code, _, err = sprout("play", *arguments)
    assert code == 2 and len(err.splitlines()) == 1 and err.startswith("error: ") and words in err


def test_a_negative_seed_is_wrong_usage(sprout):
    assert sprout("play", "sokoban", "--seed=-1")[0] == 2


def test_an_environment_that_raises_is_an_error_of_one_line(monkeypatch):
    from sprout.seed.envs.sokoban import SokobanEnv

    def broken(self, action):
        raise KeyError("door")

    monkeypatch.setattr(SokobanEnv, "step", broken)
    with pytest.raises(RuntimeError, match="the environment raised KeyError: 'door'"):
        play("sokoban", 0, "train", {}, ask=lambda prompt: "up", say=lambda text: None)


def test_options():
    assert parse_options(["a=1", "b=x", "c=[1, 2]", "d=a=b", "e="]) == {
        "a": 1, "b": "x", "c": [1, 2], "d": "a=b", "e": None,
    }  # fmt: skip
