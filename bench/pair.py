"""Paired re-scoring: one gradient of the SEED loss, ours against transformers.

    python -m sprout.bench.pair --json

Each provider computes the same thing from the same weights: l_skill of every action token without a gradient,
l_theta with one, and the gradient of the whole loss. transformers does it with one sequence per turn, and
with one sequence per trajectory for the student. Predicted ratios compare FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from sprout.bench.backends import by_backend
from sprout.bench.measure import Ceilings, Timing, interleaved, peak_mb
from sprout.bench.models import as_transformers
from sprout.bench.peers import TransformersUpdate
from sprout.bench.table import Row
from sprout.bench.workload import PairShape, Trajectory, make_trajectories, with_old_logprobs
from sprout.engine.flops import causal_pairs, forward_flops, head_flops, pair_flops
from sprout.engine.forest import Forest, Turn
from sprout.engine.model import Decoder, ModelConfig
from sprout.engine.scoring import score_turns
from sprout.engine.update import UpdateSettings, policy_update
from sprout.kernels import PolicyLossCoefficients

OURS, PER_TURN, WHOLE = "sprout", "transformers, per turn", "transformers, whole trajectory"
COEFFICIENTS = PolicyLossCoefficients(opd=0.5)
ROWS_PER_MICRO_BATCH = 8192
# Allowed differences, of the largest gradient of a parameter.
GRADIENT_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}


@dataclass(frozen=True)
class Provider:
    """`run` leaves the gradient of the loss in `model`; rows and FLOPs are what it computes."""

    name: str
    model: nn.Module
    run: Callable[[], object]
    trained_rows: int
    scored_rows: int
    flops: float


class GradientsOnly:
    """Stands where the optimizer does: the update ends with the gradient."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def zero_grad(self) -> None:
        self.model.zero_grad(set_to_none=True)

    def step(self) -> float:
        return 0.0


@dataclass(frozen=True)
class PairResult:
    """Times and memory by provider name; `per_turn` names the fastest of the per-turn batch sizes."""

    providers: dict[str, Provider]
    timings: dict[str, Timing]
    peak_mb: dict[str, float]
    ceilings: Ceilings
    per_turn: str

    def speedup(self, peer: str) -> float:
        return self.timings[OURS].speedup_over(self.timings[peer])

    def predicted(self, peer: str) -> float:
        return self.providers[peer].flops / self.providers[OURS].flops

    def rows(self) -> list[Row]:
        """A table row per provider."""
        return [
            {
                "provider": name,
                "median_s": self.timings[name].median,
                "p20_s": self.timings[name].p20,
                "p80_s": self.timings[name].p80,
                "trained_rows": p.trained_rows,
                "scored_rows": p.scored_rows,
                "gflop": p.flops / 1e9,
                "gflop_per_s": p.flops / self.timings[name].median / 1e9,
                "peak_mb": self.peak_mb[name],
                "speedup": self.speedup(name),
                "predicted": self.predicted(name),
            }
            for name, p in self.providers.items()
        ]

    def by_backend(self) -> Row:
        """Ours on its other backends, where they were asked for."""
        names = [name for name in self.providers if name.startswith(f"{OURS}, ")]
        return {f"median_s_{name.removeprefix(f'{OURS}, ')}": self.timings[name].median for name in names}

    def summary(self) -> Row:
        """The numbers to follow."""
        peers = {"per_turn": self.per_turn, "whole_trajectory": WHOLE}
        ratios: dict[str, float] = {}
        for key, peer in peers.items():
            ratios[f"speedup_vs_{key}"] = self.speedup(peer)
            ratios[f"predicted_vs_{key}"] = self.predicted(peer)
        return ratios | {
            "efficiency": min(self.speedup(peer) / self.predicted(peer) for peer in peers.values()),
            "peak_mb": self.peak_mb[OURS],
            "peak_mb_per_turn": self.peak_mb[self.per_turn],
            "peak_mb_whole_trajectory": self.peak_mb[WHOLE],
            "median_s": self.timings[OURS].median,
            "gemm_gflop_per_s": self.ceilings.gemm_gflops,
            "copy_gb_per_s": self.ceilings.copy_gb_per_s,
            **self.by_backend(),
        }


def measure_pair(
    decoder: Decoder,
    shape: PairShape,
    rounds: int,
    batch_sizes: Sequence[int] = (1, 4),
    backend: str | None = None,
) -> PairResult:
    """Check that all providers agree on the gradient (which also warms them up), then measure them.

    `backend` is what ours runs on; None is its default, and "all" adds a provider for every other one.
    """
    providers = make_providers(decoder, shape, batch_sizes, backend)
    check_gradients(list(providers.values()), GRADIENT_TOLERANCE[decoder.dtype])
    runs = {name: p.run for name, p in providers.items()}
    timings, ceilings = interleaved(runs, rounds, decoder.device, decoder.dtype)
    memory = {name: peak_mb(_from_scratch(p), decoder.device) for name, p in providers.items()}
    per_turn = min((n for n in providers if n.startswith(PER_TURN)), key=lambda n: timings[n].median)
    return PairResult(providers, timings, memory, ceilings, per_turn)


def make_providers(
    decoder: Decoder, shape: PairShape, batch_sizes: Sequence[int], backend: str | None = None
) -> dict[str, Provider]:
    """Ours, transformers per turn with each of the batch sizes, and transformers with whole trajectories."""
    trajectories = _sampled(decoder, make_trajectories(shape, decoder.config.vocab_size))
    model = as_transformers(decoder)
    common = (model, trajectories, COEFFICIENTS, decoder.device)
    peers = {f"{PER_TURN}, batch {b}": TransformersUpdate.per_turn(*common, b) for b in batch_sizes}
    peers[WHOLE] = TransformersUpdate.whole_trajectory(*common, max(batch_sizes))
    ours = _ours(decoder, [turn for trajectory in trajectories for turn in trajectory.turns], backend)
    return ours | {name: _peer(name, update, decoder.config) for name, update in peers.items()}


def check_gradients(providers: Sequence[Provider], tolerance: float) -> None:
    """Assert that every provider finds the same gradient as the first one, parameter by parameter."""
    first: dict[str, torch.Tensor] = {}
    for provider in providers:
        provider.run()
        for name, parameter in provider.model.named_parameters():
            assert parameter.grad is not None, f"{provider.name}: {name} got no gradient"
            expected = first.setdefault(name, parameter.grad.clone())
            error = float((parameter.grad - expected).abs().max() / expected.abs().max())
            assert error < tolerance, f"{provider.name}: gradient of {name} differs by {error:.1e}"
        provider.model.zero_grad(set_to_none=True)


def _sampled(decoder: Decoder, trajectories: list[Trajectory]) -> list[Trajectory]:
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    scores = score_turns(decoder, turns, temperature=1.0, rows_per_micro_batch=ROWS_PER_MICRO_BATCH)
    return with_old_logprobs(trajectories, [student for student, _ in scores])


def _ours(decoder: Decoder, turns: list[Turn], backend: str | None) -> dict[str, Provider]:
    settings = UpdateSettings(COEFFICIENTS, rows_per_micro_batch=ROWS_PER_MICRO_BATCH)
    forest = Forest.pack(turns)
    update = partial(policy_update, decoder, GradientsOnly(decoder), turns, settings)
    runs = by_backend(OURS, update, backend, decoder.device, decoder.dtype)
    scored, flops = forest.rows - forest.trained, pair_flops(decoder.config, forest).shared
    return {name: Provider(name, decoder, run, forest.trained, scored, flops) for name, run in runs.items()}


def _peer(name: str, update: TransformersUpdate, config: ModelConfig) -> Provider:
    students, teachers = update.lengths()
    flops = 3 * forward_flops(config, students.sum(), causal_pairs(students))
    flops += forward_flops(config, teachers.sum(), causal_pairs(teachers))
    flops += 4 * head_flops(config, len(update.columns))
    return Provider(name, update.model, update, int(students.sum()), int(teachers.sum()), flops)


def _from_scratch(provider: Provider) -> Callable[[], object]:
    """The run with no gradient allocated before it."""
    provider.model.zero_grad(set_to_none=True)
    return provider.run


if __name__ == "__main__":
    import typer

    from sprout.bench.cli import pair

    typer.run(pair)
