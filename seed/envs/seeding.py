"""What fixes an episode: a split and a seed, from the arguments of `gymnasium.Env.reset`."""

from __future__ import annotations

from typing import Any

import gymnasium


def split_and_seed(env: gymnasium.Env, seed: int | None, options: dict[str, Any] | None) -> tuple[str, int]:
    """`options["split"]`, "train" without one; and the seed, without one drawn from the env's generator."""
    gymnasium.Env.reset(env, seed=seed)
    if seed is None:
        seed = int(env.np_random.integers(2**31))
    return str((options or {}).get("split", "train")), seed
