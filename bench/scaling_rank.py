"""What each process of `sprout bench scaling` does: its share of a SEED update, and episodes of its own.

    torchrun --standalone --nproc-per-node 2 -m sprout.bench.scaling_rank quickstart cpu float32 3 full

Rank 0 ends with one line of JSON: work -> seconds of each call, from when all ranks begin until all are done.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from sprout.bench.episodes import MULTI_TURN, Episodes, EpisodeShape
from sprout.bench.generate import play_ours
from sprout.bench.measure import seconds_per_call
from sprout.bench.models import build_decoder
from sprout.bench.workload import PairShape, make_trajectories
from sprout.engine import parallel
from sprout.engine.generator import Generator
from sprout.engine.model import Decoder
from sprout.engine.optimizer import OptimizerConfig, build_optimizer
from sprout.engine.update import UpdateSettings, policy_update
from sprout.kernels import PolicyLossCoefficients


@dataclass(frozen=True)
class Work:
    """What there is to do for every process."""

    pair: PairShape
    episodes: EpisodeShape


SIZES = {
    "full": Work(PairShape(), MULTI_TURN),
    "quick": Work(
        PairShape(trajectories=2, prompt=32, turns=2, observation=8, action=4, skill=8),
        EpisodeShape(groups=2, members=2, prompt=16, turns=2, observation=4, action=3),
    ),
}


def update(decoder: Decoder, shape: PairShape) -> Callable[[], object]:
    """A whole SEED update on as many tasks as there are ranks; every rank is given all, as in a run."""
    tasks = [
        make_trajectories(shape, decoder.config.vocab_size, seed) for seed in range(parallel.world_size())
    ]
    turns = [turn for task in tasks for trajectory in task for turn in trajectory.turns]
    settings = UpdateSettings(PolicyLossCoefficients(opd=0.5))
    return partial(policy_update, decoder, build_optimizer(decoder, OptimizerConfig()), turns, settings)


def generation(decoder: Decoder, shape: EpisodeShape) -> Callable[[], object]:
    """This rank's episodes, from when the weights are still in parts."""
    episodes = Episodes.random(shape, decoder.config.vocab_size, seed=parallel.rank())
    generator = Generator(decoder, stop_id=[], cache_tokens=shape.episodes * (shape.length + 32))

    def play() -> None:
        with parallel.whole(decoder):
            play_ours(generator, episodes, 1.0)

    return play


def seconds(run: Callable[[], object], calls: int, device: torch.device) -> list[float]:
    """Of each call after a first one that only warms up."""

    def together() -> None:
        run()
        parallel.barrier()

    together()
    return [seconds_per_call(together, device) for _ in range(calls)]


def main(model: str, device: str, dtype: str, calls: int, size: str) -> None:
    """Measure, and print."""
    where, compute, work = parallel.initialize(device), getattr(torch, dtype), SIZES[size]
    decoder = build_decoder(model, where, parallel.master_dtype(compute))
    parallel.shard_model(decoder, decoder.model.layers, compute)
    runs = {"update": update(decoder, work.pair), "generation": generation(decoder, work.episodes)}
    found = {name: seconds(run, calls, where) for name, run in runs.items()}
    if parallel.is_main():
        print(json.dumps(found))
    parallel.shutdown()


if __name__ == "__main__":
    model, device, dtype, calls, size = sys.argv[1:]
    main(model, device, dtype, int(calls), size)
