"""Our interpreter beside the original engine (extra `alfworld`), step by step."""

from random import Random

import pytest

from sprout.seed.envs.alfworld.backend import TextWorldEngine, start_engine

NONSENSE = ["dance", "", "go to nowhere 1", "GO TO desk 1", "take", " look ", "use desklamp 9"]


def command_of(rng, commands, seen):
    """A command that changes things, any possible one, one that was possible before, or nonsense."""
    draw = rng.random()
    changing = [command for command in commands if not command.startswith(("go ", "look", "help", "inv"))]
    if draw < 0.45 and changing:
        return rng.choice(changing)
    if draw < 0.8:
        return rng.choice(commands)
    return rng.choice(sorted(seen)) if draw < 0.92 else rng.choice(NONSENSE)


def same(real, own, place):
    assert own.observation == real.observation, place
    assert own.commands == real.commands, place
    assert (own.won, own.reward) == (real.won, real.reward), place


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_parity(game_files, monkeypatch):
    pytest.importorskip("alfworld", reason="the original engine is not installed (extra alfworld)")
    pytest.importorskip(
        "fast_downward", reason="the original engine's planner is not installed (extra alfworld)"
    )
    for path in game_files:
        real, own, rng = TextWorldEngine(path), start_engine("own", path), Random(path.parent.name)
        frame = own.reset()
        same(real.reset(), frame, path)
        for command in own.game.file.walkthrough:
            frame = own.step(command)
            same(real.step(command), frame, (path, command))
        frame = own.reset()
        same(real.reset(), frame, path)
        seen = set(frame.commands)
        for turn in range(30):
            command = command_of(rng, frame.commands, seen)
            frame = own.step(command)
            same(real.step(command), frame, (path, turn, command))
            seen |= set(frame.commands)
        real.close()


def test_missing_engine_names_the_extra(game_files, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "textworld", None)
    with pytest.raises(ImportError, match=r"pip install 'sprout-rl\[alfworld\]', or use backend=own"):
        start_engine("textworld", game_files[0])
