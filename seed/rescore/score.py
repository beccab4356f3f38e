"""Scores stored actions under both contexts, and under those of the controls, on one forest per batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import torch

from sprout.engine.dual import pair_logprobs
from sprout.engine.flops import score_flops
from sprout.engine.forest import Floats, Forest, Turn
from sprout.engine.microbatch import split_turns
from sprout.seed.analyzer.sources import teacher_skills
from sprout.seed.conversation import Conversation, recorded_contexts
from sprout.seed.policy import Policy
from sprout.seed.schema import Config
from sprout.seed.trajectory import Ids, Skill, Trajectory

OWN, NULL, SHUFFLED = "own", "null", "shuffled"
Texts = Mapping[str, Sequence[str | None]]


@dataclass
class ScoredTurn:
    """One action: l_theta of its ids, and l_skill under each teacher context that it has."""

    trajectory: Trajectory
    number: int
    student: Floats
    teachers: dict[str, Floats]

    def delta(self, variant: str) -> Floats:
        """Delta = l_skill - l_theta of every id."""
        return self.teachers[variant] - self.student


@dataclass
class Work:
    """What scoring has cost. A pair token is an action token under an ordinary and a skill context."""

    turns: int = 0
    pair_tokens: int = 0
    logical_tokens: int = 0
    rows: int = 0
    flops: float = 0.0
    flops_unshared: float = 0.0
    seconds: float = 0.0

    def add(self, other: Work) -> None:
        """Sum up."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def record(self) -> dict[str, float]:
        """The sums, and the rates that follow."""
        return {
            **{one.name: getattr(self, one.name) for one in fields(self)},
            "pair_tokens_per_s": self.pair_tokens / max(self.seconds, 1e-9),
            "logical_tokens_per_s": self.logical_tokens / max(self.seconds, 1e-9),
            "reuse_ratio": self.logical_tokens / max(self.rows, 1),
            "flops_saving": self.flops_unshared / max(self.flops, 1.0),
        }


@dataclass
class Scored:
    """One chunk. left_out counts trajectories (no_skill) and turns (too_long)."""

    turns: list[ScoredTurn] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    left_out: Counter[str] = field(default_factory=Counter)


def skill_texts(
    trajectories: Sequence[Trajectory], skills: Sequence[Skill | None], null: str | None, seed: int
) -> Texts:
    """Per variant the skill text of every trajectory, None where it has none of that variant.

    own, and unless `null` is None the controls: the text `null` for all, and the skill of another group.
    """
    texts: dict[str, list[str | None]] = {
        OWN: [teacher.text for teacher in teacher_skills(trajectories, skills, "own", seed)]
    }
    if null is not None:
        texts[NULL] = [null] * len(trajectories)
        texts[SHUFFLED] = [t.text for t in teacher_skills(trajectories, skills, "shuffled", seed)]
    return texts


def score(policy: Policy, trajectories: Sequence[Trajectory], texts: Texts, config: Config) -> Scored:
    """Every turn of every trajectory that has a skill of its own.

    A turn whose contexts exceed rollout.max_context_tokens is left out and counted, never cut. Raises
    ValueError for ids that the model or its chat format does not have.
    """
    scored, turns, places = Scored(), [], []
    for index, trajectory in enumerate(trajectories):
        if texts[OWN][index] is None:
            scored.left_out["no_skill"] += 1
            continue
        given = {variant: text for variant in texts if (text := texts[variant][index]) is not None}
        for number, variants in enumerate(_teachers(policy, trajectory, given, config)):
            if not variants:
                scored.left_out["too_long"] += 1
                continue
            scored.turns.append(ScoredTurn(trajectory, number, np.empty(0, np.float32), {}))
            for variant, turn in variants.items():
                turns.append(turn)
                places.append((len(scored.turns) - 1, variant))
    started = time.monotonic()
    _score_turns(policy, turns, places, scored, config)
    scored.work.seconds = time.monotonic() - started
    scored.work.turns = len(scored.turns)
    return scored


def _teachers(
    policy: Policy, trajectory: Trajectory, texts: Mapping[str, str], config: Config
) -> list[dict[str, Turn]]:
    """Per turn the engine's turn of each variant; empty for a turn that does not fit."""
    _check_ids(policy, trajectory)
    conversation = Conversation.of(trajectory, policy.chat, config.rollout)
    contexts = recorded_contexts(trajectory, conversation)
    longest = config.rollout.max_context_tokens
    turns = []
    for number, (record, context) in enumerate(zip(trajectory.turns, contexts, strict=True)):
        taught: dict[str, Ids] = {name: conversation.teacher(text, number) for name, text in texts.items()}
        action = np.asarray(record.action, np.int64)
        fits = max(len(ids) for ids in (context, *taught.values())) + len(action) <= longest
        turns.append({name: Turn(context, action, ids) for name, ids in taught.items()} if fits else {})
    return turns


def _check_ids(policy: Policy, trajectory: Trajectory) -> None:
    rows = policy.decoder.config.vocab_size
    largest = max((i for turn in trajectory.turns for i in (*turn.tail, *turn.action)), default=0)
    if largest >= rows:
        raise ValueError(
            f"trajectory {trajectory.id} has the token id {largest}, the model only {rows} tokens: it was "
            "recorded with another tokenizer"
        )


@torch.no_grad()
def _score_turns(
    policy: Policy, turns: list[Turn], places: list[tuple[int, str]], scored: Scored, config: Config
) -> None:
    decoder, work = policy.decoder, scored.work
    for group in split_turns(turns, config.train.rows_per_micro_batch):
        forest = Forest.pack([turns[i] for i in group], decoder.device)
        pair = pair_logprobs(decoder, forest, temperature=config.rollout.temperature)
        assert pair.teacher is not None, "every turn has a teacher"
        cuts = np.cumsum([len(turns[i].action) for i in group])[:-1]
        students, teachers = (np.split(v.float().cpu().numpy(), cuts) for v in (pair.student, pair.teacher))
        for i, student, teacher in zip(group, students, teachers, strict=True):
            place, variant = places[i]
            scored.turns[place].student = student
            scored.turns[place].teachers[variant] = teacher
        stats, flops = forest.stats(), score_flops(decoder.config, forest)
        work.add(
            Work(
                pair_tokens=len(forest.target),
                logical_tokens=stats.logical_tokens,
                rows=stats.rows,
                flops=float(flops.shared),
                flops_unshared=float(flops.unshared),
            )
        )
