"""The environment benchmark counts what it plays."""

import gymnasium
import pytest

from sprout.bench.environments import measure_environment


class Counting(gymnasium.Env):
    """Ends after three steps; remembers what it was asked."""

    made = 0

    def __init__(self, commands=("look",)):
        type(self).made += 1
        self.commands = commands

    def reset(self, *, seed=None, options=None):
        assert options == {"split": "train"}
        self.left = 3
        return "start", {"admissible_commands": self.commands}

    def step(self, action):
        assert action in self.commands
        self.left -= 1
        return "", 0.0, False, self.left == 0, {"admissible_commands": self.commands}


def test_every_reset_and_step_is_timed():
    speed = measure_environment(Counting, episodes=4)
    assert (len(speed.reset_s), len(speed.step_s)) == (4, 12)
    assert speed.summary()["steps_per_s"] == pytest.approx(12 / sum(speed.step_s))
    assert [row["count"] for row in speed.rows("counting")] == [4, 12]
    assert Counting.made == 5  # one to play, four alive at once


def test_an_environment_without_commands_is_refused():
    with pytest.raises(ValueError, match="lists no admissible_commands"):
        measure_environment(lambda: Counting(()), episodes=1)
