"""How fast an environment plays: steps per second, time to reset, memory of a live episode.

    sprout bench env alfworld

Responses are drawn at random from the commands that `info["admissible_commands"]` lists, so every step pays
for finding them. Times are CPU seconds of this process: what a core gives, however busy the machine is.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import gymnasium
import numpy as np

SPLIT = "train"


@dataclass(frozen=True)
class EnvironmentSpeed:
    """CPU seconds of every reset to another task and of every step; MB (10^6 bytes) of a live episode."""

    start_s: float
    reset_s: tuple[float, ...]
    step_s: tuple[float, ...]
    mb_per_episode: float

    def rows(self, name: str) -> list[dict[str, str | float]]:
        rows: list[dict[str, str | float]] = []
        for what, seconds in (("reset", self.reset_s), ("step", self.step_s)):
            rows.append({"environment": name, "what": what, "count": len(seconds)})
            rows[-1] |= {
                f"{label}_ms": 1e3 * float(np.quantile(seconds, q)) for label, q in QUANTILES.items()
            }
        return rows

    def summary(self) -> dict[str, float]:
        return {
            "steps_per_s": len(self.step_s) / sum(self.step_s),
            "reset_ms": 1e3 * float(np.median(self.reset_s)),
            "start_ms": 1e3 * self.start_s,
            "mb_per_episode": self.mb_per_episode,
        }


QUANTILES = {"median": 0.5, "p20": 0.2, "p80": 0.8, "max": 1.0}


def measure_environment(make: Callable[[], gymnasium.Env[str, str]], episodes: int) -> EnvironmentSpeed:
    """Plays `episodes` tasks of the training split at random, each until it ends.

    Raises ValueError for an environment that does not list its admissible commands.
    """
    gc.collect()
    gc.freeze()  # collections need not walk through what was imported before
    start_s, environment = _timed(make)
    resets, steps, rng = [], [], Random(0)
    environment.reset(seed=episodes, options={"split": SPLIT})  # lists the tasks, compiles what they share
    for seed in range(episodes):
        seconds, (_, info) = _timed(environment.reset, seed=seed, options={"split": SPLIT})
        resets.append(seconds)
        ended = False
        while not ended:
            command = rng.choice(_commands(info))
            seconds, (_, _, terminated, truncated, info) = _timed(environment.step, command)
            steps.append(seconds)
            ended = terminated or truncated
    environment.close()
    gc.unfreeze()
    return EnvironmentSpeed(start_s, tuple(resets), tuple(steps), _memory(make, min(episodes, 8)))


def _memory(make: Callable[[], gymnasium.Env[str, str]], episodes: int) -> float:
    """MB of Python objects that one more live episode of another task holds after some steps."""
    live, rng = [], Random(1)
    tracemalloc.start()
    for seed in range(episodes):
        environment = make()
        _, info = environment.reset(seed=1000 + seed, options={"split": SPLIT})
        for _ in range(10):
            info = environment.step(rng.choice(_commands(info)))[-1]
        live.append((environment, tracemalloc.get_traced_memory()[0]))
    tracemalloc.stop()
    held = [memory for _, memory in live]
    return float(np.median(np.diff(held))) / 1e6 if len(held) > 1 else held[0] / 1e6


def _commands(info: dict[str, Any]) -> list[str]:
    commands = info.get("admissible_commands")
    if not commands:
        raise ValueError("the environment lists no admissible_commands in info; random play needs them")
    return list(commands)


def _timed(run: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[float, Any]:
    start = time.process_time()
    result = run(*args, **kwargs)
    return time.process_time() - start, result
