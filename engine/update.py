"""The policy update: outcome RL plus gated distillation on turns, micro-batched, globally normalised.

Every loss component is divided by its own token count over the whole optimizer step, so the gradient does not
depend on how the turns were split. Every rank is given all turns and computes its share of the micro-batches;
gradients are summed where they are sharded, scores and statistics are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sprout.engine import parallel
from sprout.engine.dual import PairLogprobs, pair_logprobs
from sprout.engine.flops import pair_flops
from sprout.engine.forest import Floats, Forest, ForestStats, Turn
from sprout.engine.microbatch import own_groups, split_turns
from sprout.engine.model import Decoder
from sprout.engine.optimizer import Optimizer
from sprout.engine.row_budget import RowBudget
from sprout.engine.scoring import by_turn, in_order, mean_gate, opd_mask_of, rl_mask, with_snapshot_scores
from sprout.engine.shaping import AdvantageShaping
from sprout.kernels import PolicyLossCoefficients, PolicyLossTerms, policy_loss

Aggregation = Literal["token_mean_global", "token_mean_microbatch", "sequence_mean"]
COMPONENTS = ("pg", "kl", "entropy", "opd", "skill_kl")


@dataclass(frozen=True)
class UpdateSettings:
    """How turns become a gradient; `coefficients` says of which loss (SEED: L = L_RL + lambda_opd L_OPD)."""

    coefficients: PolicyLossCoefficients
    temperature: float = 1.0
    rows_per_micro_batch: int = 8192
    optimizer_steps: int = 1
    loss_aggregation: Aggregation = "token_mean_global"
    teacher_policy: Literal["snapshot", "live"] = "snapshot"
    opd_baseline: Literal["none", "mean"] = "none"
    shaping: AdvantageShaping = field(default_factory=AdvantageShaping)

    @property
    def needs_snapshot_scores(self) -> bool:
        """Whether theta_old must score the batch first: with one step the dual forward already does it."""
        old = self.teacher_policy == "snapshot" or self.shaping.looks_at_teacher
        return self.opd_baseline == "mean" or (old and self.optimizer_steps > 1)


@dataclass(frozen=True)
class TurnScores:
    """What an update saw of one turn; arrays are [len(action)], teacher values None without a teacher.

    advantage   as the loss used it, after `AdvantageShaping`
    """

    logprob: Floats
    ratio: Floats
    advantage: Floats
    skill_logprob: Floats | None = None
    delta: Floats | None = None
    gate: Floats | None = None


@dataclass
class UpdateResult:
    """Metrics by name, scores in the order of the turns given, and the turns of steps that were skipped."""

    metrics: dict[str, float] = field(default_factory=dict)
    scores: list[TurnScores] = field(default_factory=list)
    skipped_turns: list[int] = field(default_factory=list)


def policy_update(
    decoder: Decoder, optimizer: Optimizer, turns: Sequence[Turn], settings: UpdateSettings
) -> UpdateResult:
    """Take `settings.optimizer_steps` steps on `turns`, split into contiguous, equally long parts.

    A step whose gradient is not finite changes nothing and is reported in `skipped_turns`. Where memory does
    not suffice, micro-batches are halved (`engine.row_budget`); actor/rows_per_micro_batch is what they ended
    as, actor/out_of_memory how often that happened.
    """
    coefficients = settings.coefficients
    budget = RowBudget(settings.rows_per_micro_batch)
    if settings.needs_snapshot_scores:
        turns = with_snapshot_scores(decoder, turns, temperature=settings.temperature, budget=budget)
        if settings.opd_baseline == "mean":
            coefficients = replace(coefficients, opd_center=mean_gate(turns, coefficients.beta))
    settings = replace(settings, coefficients=coefficients)
    statistics = _Statistics()
    scores: dict[int, TurnScores] = {}
    result = UpdateResult()
    norms: list[float] = []
    for part in np.array_split(np.arange(len(turns)), settings.optimizer_steps):
        indices = part.tolist()
        batch = {i: turns[i] for i in indices}
        optimizer.zero_grad()
        statistics += budget.fit(
            list(batch.values()),
            lambda rows, batch=batch: _accumulate(decoder, settings, batch, rows, scores),
            optimizer.zero_grad,
        )
        norms.append(optimizer.step())
        if not math.isfinite(norms[-1]):
            result.skipped_turns += indices
    result.scores = in_order(scores, len(turns))
    result.metrics |= statistics.gathered().metrics(settings.optimizer_steps)
    result.metrics["actor/grad_norm"] = float(np.mean(norms))
    result.metrics["actor/rows_per_micro_batch"] = float(budget.rows)
    result.metrics["actor/out_of_memory"] = float(budget.halvings)
    result.metrics["actor/skipped_steps"] = float(sum(not math.isfinite(n) for n in norms))
    return result


@dataclass(frozen=True)
class _Columns:
    """Per-token values of a micro-batch next to its log-probs, all [M] and on their device."""

    advantage: Tensor
    rl_weight: Tensor
    opd_weight: Tensor
    old_logprob: Tensor | None
    ref_logprob: Tensor | None
    skill_logprob: Tensor  # NaN, under opd_weight 0, where a turn has no teacher

    def shaped_advantage(self, shaping: AdvantageShaping, student: Tensor) -> Tensor:
        """The advantages after `shaping`; `student` stands for old_logprob where there is none."""
        if not shaping.looks_at_teacher:
            return self.advantage
        old = student.detach() if self.old_logprob is None else self.old_logprob
        delta = torch.where(self.opd_weight != 0, self.skill_logprob - old, 0)
        return shaping(self.advantage, delta.to(self.advantage.dtype))

    @staticmethod
    def of(
        turns: Sequence[Turn], pair: PairLogprobs, rl_weight: list[Tensor], opd_weight: list[Tensor]
    ) -> _Columns:
        device = pair.student.device
        skill = _filled(turns, "skill_logprob", math.nan).to(device)
        if pair.teacher is not None:
            skill = torch.where(pair.teacher.isnan(), skill, pair.teacher)
        return _Columns(
            advantage=_filled(turns, "advantage", 0.0).to(device),
            rl_weight=_concatenated(rl_weight).to(device),
            opd_weight=_concatenated(opd_weight).to(device),
            old_logprob=_all_or_none(turns, "old_logprob", device),
            ref_logprob=_all_or_none(turns, "ref_logprob", device),
            skill_logprob=skill,
        )


def _accumulate(
    decoder: Decoder,
    settings: UpdateSettings,
    batch: dict[int, Turn],
    rows: int,
    scores: dict[int, TurnScores],
) -> _Statistics:
    """Backward through this rank's share of `batch` in micro-batches of `rows`; `scores` get its keys."""
    indices, turns = list(batch), list(batch.values())
    groups = split_turns(turns, rows)
    aggregation = settings.loss_aggregation
    rl_weight = _normalise([torch.from_numpy(rl_mask(t)).double() for t in turns], groups, aggregation)
    opd_weight = _normalise([torch.from_numpy(opd_mask_of(t)).double() for t in turns], groups, aggregation)
    statistics = _Statistics()
    for group in own_groups(turns, rows):
        own = [turns[i] for i in group]
        forest = Forest.pack(own, decoder.device)
        pair = pair_logprobs(decoder, forest, temperature=settings.temperature, with_entropy=True)
        columns = _Columns.of(own, pair, [rl_weight[i] for i in group], [opd_weight[i] for i in group])
        advantage = columns.shaped_advantage(settings.shaping, pair.student)
        loss, terms = policy_loss(
            pair.student,
            old_logprob=columns.old_logprob,
            advantage=advantage,
            ref_logprob=columns.ref_logprob,
            skill_logprob=columns.skill_logprob,
            entropy=pair.entropy,
            weight=columns.rl_weight,
            opd_weight=columns.opd_weight,
            coefficients=settings.coefficients,
        )
        loss.backward()
        statistics.record(forest, pair, columns, terms)
        statistics.flops += pair_flops(decoder.config, forest).shared
        for i, score in zip(group, _turn_scores(own, pair, columns, advantage, terms), strict=True):
            scores[indices[i]] = score
    return statistics


@dataclass
class _Statistics:
    """What micro-batches add up to: loss components, per-token samples, forests."""

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COMPONENTS, 0.0))
    samples: dict[str, list[Tensor]] = field(default_factory=dict)
    forest_stats: list[ForestStats] = field(default_factory=list)
    flops: float = 0.0

    def record(self, forest: Forest, pair: PairLogprobs, columns: _Columns, terms: PolicyLossTerms) -> None:
        """Add a micro-batch."""
        self.forest_stats.append(forest.stats())
        for name in COMPONENTS:
            self.sums[name] += float(getattr(terms, name))
        on, taught = columns.rl_weight > 0, columns.opd_weight > 0
        samples = {
            "ratio": terms.ratio[on],
            "clipped": terms.clipped[on].float(),
            "k3": terms.k3[on],
            "delta": terms.delta[taught],
            "gate": terms.gate[taught],
        }
        if columns.old_logprob is not None:
            samples["probs_diff"] = (pair.student.detach().exp() - columns.old_logprob.exp())[on].abs()
        if pair.entropy is not None:
            samples["entropy"] = pair.entropy.detach()[on]
        for name, values in samples.items():
            self.samples.setdefault(name, []).append(values)

    def __iadd__(self, other: _Statistics) -> _Statistics:
        self.sums = {name: self.sums[name] + value for name, value in other.sums.items()}
        for name, values in other.samples.items():
            self.samples.setdefault(name, []).extend(values)
        self.forest_stats += other.forest_stats
        self.flops += other.flops
        return self

    def gathered(self) -> _Statistics:
        """The statistics of all ranks together."""
        samples = {name: [torch.cat(values).cpu()] for name, values in self.samples.items()}
        total = _Statistics()
        for own in parallel.gather(replace(self, samples=samples)):
            total += own
        return total

    def metrics(self, steps: int) -> dict[str, float]:
        """Means over the update under the field's names; components are means over its optimizer steps."""
        s = {name: torch.cat(values).float() for name, values in self.samples.items()}
        logical = sum(f.logical_tokens for f in self.forest_stats)
        rows = sum(f.rows for f in self.forest_stats)
        m = {
            "actor/pg_loss": self.sums["pg"] / steps,
            "actor/kl_loss": self.sums["kl"] / steps,
            "actor/entropy": _mean(s.get("entropy")),
            "actor/pg_clipfrac": _mean(s.get("clipped")),
            "actor/ppo_kl": _mean(-s["ratio"].log()) if "ratio" in s else 0.0,
            "seed/opd_loss": self.sums["opd"] / steps,
            "seed/forest_reuse_ratio": logical / max(rows, 1),
            "seed/forest_rows": float(rows),
            "perf/total_num_tokens": float(logical),
            "perf/flops": self.flops,
        }
        if "probs_diff" in s and len(s["probs_diff"]):
            m["training/rollout_probs_diff_mean"] = _mean(s["probs_diff"])
            m["training/rollout_probs_diff_max"] = float(s["probs_diff"].max())
        if "delta" in s and len(s["delta"]):
            m |= {
                "seed/gate_mean": _mean(s["gate"]),
                "seed/gate_active_ratio": _mean((s["gate"] > 0.5).float()),
                "seed/delta_mean": _mean(s["delta"]),
                "seed/delta_p05": float(s["delta"].quantile(0.05)),
                "seed/delta_p95": float(s["delta"].quantile(0.95)),
            }
        return m


def _normalise(masks: list[Tensor], groups: list[list[int]], aggregation: Aggregation) -> list[Tensor]:
    if aggregation == "token_mean_microbatch":
        weights = list(masks)
        for group in groups:
            count = max(float(sum(masks[i].sum() for i in group)), 1.0) * len(groups)
            for i in group:
                weights[i] = masks[i] / count
        return weights
    if aggregation == "sequence_mean":
        masks = [m / m.sum().clamp(min=1.0) for m in masks]
    total = float(sum(m.sum() for m in masks))
    return [m / max(total, 1e-30) for m in masks]


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([*parts]) if parts else torch.zeros(0)


def _filled(turns: Sequence[Turn], name: str, missing: float) -> Tensor:
    """One per-token field of all turns, [M]; `missing` where a turn lacks it."""
    values = [getattr(t, name) for t in turns]
    filled = [
        np.full(len(t.action), missing, np.float32) if v is None else v
        for t, v in zip(turns, values, strict=True)
    ]
    return torch.from_numpy(np.concatenate([np.zeros(0), *filled]).astype(np.float32))


def _all_or_none(turns: Sequence[Turn], name: str, device: torch.device) -> Tensor | None:
    """One per-token field of all turns, [M]; None when no turn has it, ValueError when only some have."""
    absent = sum(getattr(t, name) is None for t in turns)
    if turns and absent == len(turns):
        return None
    if absent:
        raise ValueError(
            f"{absent} of {len(turns)} turns lack {name}: give it to all turns of an update or to none"
        )
    return _filled(turns, name, math.nan).to(device)


def _turn_scores(
    batch: Sequence[Turn], pair: PairLogprobs, columns: _Columns, advantage: Tensor, terms: PolicyLossTerms
) -> list[TurnScores]:
    everything = range(len(batch))
    own = [by_turn(x, batch, everything) for x in (pair.student, terms.ratio, advantage)]
    teacher = [by_turn(x, batch, everything) for x in (columns.skill_logprob, terms.delta, terms.gate)]
    return [
        TurnScores(*o, *(t if taught else (None, None, None)))
        for o, t, taught in zip(
            zip(*own, strict=True), zip(*teacher, strict=True), map(_has_teacher, batch), strict=True
        )
    ]


def _has_teacher(turn: Turn) -> bool:
    return turn.teacher_context is not None or turn.skill_logprob is not None


def _mean(values: Tensor | None) -> float:
    return float(values.mean()) if values is not None and len(values) else 0.0
