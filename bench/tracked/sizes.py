"""Sizes of the tracked measurements."""

from __future__ import annotations

from dataclasses import dataclass

from sprout.bench.workload import PairShape

CANONICAL = PairShape()
SHORT = PairShape(trajectories=2, prompt=128, turns=3, observation=32)


@dataclass(frozen=True)
class Sizes:
    """The defaults are the named sizes; `QUICK` shows that everything runs."""

    rounds: int = 5
    causal_rows: tuple[int, ...] = (1024, 2048, 4096)
    head_sizes: tuple[int, ...] = (64, 128)
    width: int = 512  # heads times head size
    forest: PairShape = CANONICAL
    tokens: int = 4096
    hidden: int = 896
    vocab: int = 151936
    logprob_rounds: int = 3
    logprob_s: float = 150.0  # for all passes at the speed of float32
    peer_s: float = 40.0  # for one pass of torch in half precision
    adamw_layers: int = 10
    update_rounds: int = 3
    large_model: str = "135m"
    large_forest: PairShape = SHORT


NAMED = Sizes()
QUICK = Sizes(
    rounds=2,
    causal_rows=(128,),
    width=128,
    forest=PairShape(trajectories=2, prompt=32, turns=2, observation=8, action=4, skill=8),
    tokens=64,
    hidden=64,
    vocab=1000,
    logprob_rounds=1,
    adamw_layers=1,
    update_rounds=1,
    large_model="small",
    large_forest=PairShape(trajectories=1, prompt=16, turns=2, observation=8, action=4, skill=8),
)
