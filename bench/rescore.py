"""`sprout rescore`'s work: both contexts of every action scored, ours against a plain two-pass transformers.

    python -m sprout.bench.rescore --json

transformers runs one student and one teacher sequence per turn, padded to batches; of its batch sizes the
fastest counts. Both score the same append-layout trajectories with the same weights, forward only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sprout.bench.measure import Ceilings, Timing, interleaved
from sprout.bench.models import as_transformers
from sprout.bench.peers import TransformersUpdate
from sprout.bench.table import Row
from sprout.bench.workload import PairShape, make_trajectories, with_old_logprobs
from sprout.engine.flops import PairFlops, score_flops
from sprout.engine.forest import Forest, Turn
from sprout.engine.model import Decoder
from sprout.engine.scoring import score_turns
from sprout.kernels import PolicyLossCoefficients

OURS, PEER = "sprout", "transformers, two passes"
ROWS_PER_MICRO_BATCH = 8192
# of a log-prob, largest difference: what each dtype's rounding explains
TOLERANCE = {torch.float64: 1e-8, torch.float32: 5e-3, torch.bfloat16: 1.0, torch.float16: 0.3}

Scorer = Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class RescoreResult:
    """Times by provider name. A pair token is an action token scored under both contexts."""

    timings: dict[str, Timing]
    ceilings: Ceilings
    pair_tokens: int
    forest: Forest
    flops: PairFlops

    @property
    def peer(self) -> str:
        """The fastest of transformers' batch sizes."""
        return min((name for name in self.timings if name != OURS), key=lambda n: self.timings[n].median)

    def rows(self) -> list[Row]:
        """A table row per provider."""
        return [
            {
                "provider": name,
                "median_s": timing.median,
                "p20_s": timing.p20,
                "p80_s": timing.p80,
                "pair_tokens_per_s": self.pair_tokens / timing.median,
                "speedup": self.timings[OURS].speedup_over(timing),
            }
            for name, timing in self.timings.items()
        ]

    def summary(self) -> Row:
        """The numbers to follow."""
        stats, ours = self.forest.stats(), self.timings[OURS]
        return {
            "speedup_vs_hf_two_pass": ours.speedup_over(self.timings[self.peer]),
            "predicted_vs_hf_two_pass": float(self.flops.saving),
            "pair_tokens_per_s": self.pair_tokens / ours.median,
            "pair_tokens_per_s_hf": self.pair_tokens / self.timings[self.peer].median,
            "rows": stats.rows,
            "reuse_ratio": stats.reuse_ratio,
            "gflop_per_s": float(self.flops.shared) / ours.median / 1e9,
            "gemm_gflop_per_s": self.ceilings.gemm_gflops,
            "median_s": ours.median,
        }


def measure_rescore(
    decoder: Decoder, shape: PairShape, rounds: int, batch_sizes: Sequence[int] = (1, 4)
) -> RescoreResult:
    """Check that all providers agree on every log-prob (which also warms them up), then time them."""
    turns, providers = make_scorers(decoder, shape, batch_sizes)
    check_scores(providers, TOLERANCE[decoder.dtype])
    timings, ceilings = interleaved(providers, rounds, decoder.device, decoder.dtype)
    forest = Forest.pack(turns)
    pair_tokens = sum(len(turn.action) for turn in turns)
    return RescoreResult(timings, ceilings, pair_tokens, forest, score_flops(decoder.config, forest))


def make_scorers(
    decoder: Decoder, shape: PairShape, batch_sizes: Sequence[int]
) -> tuple[list[Turn], dict[str, Scorer]]:
    """The turns, and functions that give l_theta and l_skill of all their action tokens."""
    trajectories = make_trajectories(shape, decoder.config.vocab_size)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]

    def ours() -> tuple[Tensor, Tensor]:
        scores = score_turns(decoder, turns, temperature=1.0, rows_per_micro_batch=ROWS_PER_MICRO_BATCH)
        students, teachers = zip(*scores, strict=True)
        return torch.from_numpy(np.concatenate(students)), torch.from_numpy(np.concatenate(teachers))

    zeros = [np.zeros(len(turn.action), np.float32) for turn in turns]
    sampled = with_old_logprobs(trajectories, zeros)
    model = as_transformers(decoder)
    first = TransformersUpdate.per_turn(model, sampled, PolicyLossCoefficients(), decoder.device, 1)
    peers = {f"{PEER}, batch {size}": replace(first, batch_size=size).scores for size in batch_sizes}
    return turns, {OURS: ours, **peers}


def check_scores(providers: dict[str, Scorer], tolerance: float) -> None:
    """Assert that every provider finds the log-probs of the first one."""
    scores = {name: scorer() for name, scorer in providers.items()}
    expected = scores[OURS]
    for name, found in scores.items():
        for kind, a, b in zip(("l_theta", "l_skill"), found, expected, strict=True):
            error = float((a.cpu() - b).abs().max())
            assert error <= tolerance, f"{name}: {kind} differs by {error:.1e}"


if __name__ == "__main__":
    import typer

    from sprout.bench.cli import rescore

    typer.run(rescore)
