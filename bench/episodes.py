"""Multi-turn generation as rollouts need it; lengths are fixed, so every provider samples as many tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class EpisodeShape:
    """Sizes in tokens; the members of a group share the prompt, and every turn but the first is observed."""

    groups: int = 8
    members: int = 8
    prompt: int = 200
    turns: int = 12
    observation: int = 16
    action: int = 6

    @property
    def episodes(self) -> int:
        return self.groups * self.members

    @property
    def sampled_tokens(self) -> int:
        return self.episodes * self.turns * self.action

    @property
    def length(self) -> int:
        """Tokens of a finished episode."""
        return self.prompt + self.turns * self.action + (self.turns - 1) * self.observation


MULTI_TURN = EpisodeShape()
SINGLE_SHOT = EpisodeShape(groups=64, members=1, prompt=64, turns=1, observation=0, action=64)
# Batches of 32 that a model of 135M plays in minutes on two cores, at transformers' pace in bfloat16 too.
REAL_MULTI_TURN = EpisodeShape(groups=4, members=8, prompt=24, turns=2, observation=8, action=4)
REAL_SINGLE_SHOT = EpisodeShape(groups=32, members=1, prompt=8, turns=1, observation=0, action=8)
WARM_UP = EpisodeShape(groups=2, members=2, prompt=8, turns=2, observation=4, action=2)


@dataclass(frozen=True)
class Episodes:
    """What is given of B episodes: prompt [B, prompt] and observation [B, turns - 1, observation]."""

    shape: EpisodeShape
    prompt: NDArray[np.int64]
    observation: NDArray[np.int64]

    @staticmethod
    def random(shape: EpisodeShape, vocab_size: int, seed: int = 0) -> Episodes:
        rng = np.random.default_rng(seed)
        prompt = rng.integers(0, vocab_size, (shape.groups, shape.prompt)).repeat(shape.members, axis=0)
        size = (shape.episodes, shape.turns - 1, shape.observation)
        return Episodes(shape, prompt, rng.integers(0, vocab_size, size))
