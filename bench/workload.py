"""The canonical shape of paired re-scoring: trajectories in append layout, the skill before each action."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sprout.engine.forest import Ids, Turn


@dataclass(frozen=True)
class PairShape:
    """Sizes in tokens; all trajectories share the prompt."""

    trajectories: int = 4
    prompt: int = 256
    turns: int = 8
    observation: int = 48
    action: int = 24
    skill: int = 64


# Append trajectories that a model of 135M scores in half a minute on two cores when each turn is a sequence.
REAL_MODEL = PairShape(trajectories=2, prompt=64, turns=8, observation=24, action=12, skill=32)


@dataclass(frozen=True)
class Trajectory:
    """A whole episode as one sequence, and its turns; turn t's context is a prefix of `ids`."""

    ids: Ids
    turns: list[Turn]


def make_trajectories(shape: PairShape, vocab_size: int, seed: int = 0) -> list[Trajectory]:
    """Random trajectories of the given shape, with a random advantage each."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, vocab_size, shape.prompt)
    return [_trajectory(shape, prompt, vocab_size, rng) for _ in range(shape.trajectories)]


def with_old_logprobs(
    trajectories: list[Trajectory], scores: list[np.ndarray], seed: int = 0
) -> list[Trajectory]:
    """The same trajectories, sampled by a policy near the one that gave `scores`, one array per turn."""
    rng = np.random.default_rng(seed)
    left = iter(scores)
    return [
        replace(
            trajectory,
            turns=[
                replace(
                    turn,
                    old_logprob=(next(left) + 0.1 * rng.normal(size=len(turn.action))).astype(np.float32),
                )
                for turn in trajectory.turns
            ],
        )
        for trajectory in trajectories
    ]


def _trajectory(shape: PairShape, prompt: Ids, vocab_size: int, rng: np.random.Generator) -> Trajectory:
    history, turns = prompt, []
    advantage = np.full(shape.action, rng.normal(), np.float32)
    for t in range(shape.turns):
        if t:
            history = np.concatenate([history, rng.integers(0, vocab_size, shape.observation)])
        action = rng.integers(0, vocab_size, shape.action)
        taught = np.concatenate([history, rng.integers(0, vocab_size, shape.skill)])
        turns.append(Turn(history, action, taught, advantage=advantage))
        history = np.concatenate([history, action])
    return Trajectory(history, turns)
