"""The SEED update as users of transformers write it: separate sequences, a teacher pass, a student pass.

Batches hold sequences of near lengths, padded on the right, where causal attention never looks. Logits are
computed for action tokens only, and the loss is the same fused epilogue as ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sprout.bench.workload import Trajectory
from sprout.engine.forest import Ids, Turn
from sprout.kernels import PolicyLossCoefficients, policy_loss


@dataclass(frozen=True)
class Scored:
    """One sequence, and the M tokens scored in it: the ids after `row` [M], as logical tokens `token` [M]."""

    ids: Ids
    row: Ids
    token: Ids


@dataclass(frozen=True)
class Columns:
    """Per-token values of all turns, [M]."""

    advantage: Tensor
    old_logprob: Tensor

    @staticmethod
    def of(turns: Sequence[Turn], device: torch.device) -> Columns:
        advantage = np.concatenate([t.advantage for t in turns if t.advantage is not None])
        old_logprob = np.concatenate([t.old_logprob for t in turns if t.old_logprob is not None])
        return Columns(torch.from_numpy(advantage).to(device), torch.from_numpy(old_logprob).to(device))

    def __len__(self) -> int:
        return len(self.advantage)


@dataclass(frozen=True)
class TransformersUpdate:
    """One gradient of the SEED loss from separate student and teacher sequences, `batch_size` at a time."""

    model: PreTrainedModel
    students: list[Scored]
    teachers: list[Scored]
    columns: Columns
    coefficients: PolicyLossCoefficients
    batch_size: int

    @staticmethod
    def per_turn(
        model: PreTrainedModel,
        trajectories: Sequence[Trajectory],
        coefficients: PolicyLossCoefficients,
        device: torch.device,
        batch_size: int,
    ) -> TransformersUpdate:
        """One student and one teacher sequence for every turn."""
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        columns = Columns.of(turns, device)
        return TransformersUpdate(
            model, _students(turns), _teachers(turns), columns, coefficients, batch_size
        )

    @staticmethod
    def whole_trajectory(
        model: PreTrainedModel,
        trajectories: Sequence[Trajectory],
        coefficients: PolicyLossCoefficients,
        device: torch.device,
        batch_size: int,
    ) -> TransformersUpdate:
        """One student sequence for every trajectory, one teacher sequence for every turn."""
        per_turn = TransformersUpdate.per_turn(model, trajectories, coefficients, device, batch_size)
        turns = iter(per_turn.students)
        students = []
        for trajectory in trajectories:
            parts = [next(turns) for _ in trajectory.turns]
            row, token = (np.concatenate([getattr(p, name) for p in parts]) for name in ("row", "token"))
            students.append(Scored(trajectory.ids, row, token))
        return TransformersUpdate(
            model, students, per_turn.teachers, per_turn.columns, coefficients, batch_size
        )

    def lengths(self) -> tuple[Ids, Ids]:
        """Rows computed for each student and each teacher sequence."""
        students, teachers = (
            np.array([len(s.ids) - 1 for s in group]) for group in (self.students, self.teachers)
        )
        return students, teachers

    def __call__(self) -> None:
        """Leave the gradient in the model's parameters."""
        self.model.zero_grad(set_to_none=True)
        skill = self._score(self.teachers)
        for batch in self._batches(self.students):
            token, logprob = self._logprobs(batch)
            loss, _ = policy_loss(
                logprob,
                old_logprob=self.columns.old_logprob[token],
                advantage=self.columns.advantage[token],
                skill_logprob=skill[token],
                weight=torch.full_like(logprob, 1 / len(self.columns)),
                coefficients=self.coefficients,
            )
            loss.backward()

    def scores(self) -> tuple[Tensor, Tensor]:
        """l_theta and l_skill [M] without a gradient: one pass over the students, one over the teachers."""
        return self._score(self.students), self._score(self.teachers)

    @torch.no_grad()
    def _score(self, sequences: list[Scored]) -> Tensor:
        values = torch.empty_like(self.columns.advantage)
        for batch in self._batches(sequences):
            token, logprob = self._logprobs(batch)
            values[token] = logprob
        return values

    def _batches(self, sequences: list[Scored]) -> Iterator[list[Scored]]:
        ordered = sorted(sequences, key=lambda s: len(s.ids))
        for start in range(0, len(ordered), self.batch_size):
            yield ordered[start : start + self.batch_size]

    def _logprobs(self, batch: Sequence[Scored]) -> tuple[Tensor, Tensor]:
        """Logical numbers [m] and log-probs [m] of the tokens scored in a batch."""
        device = self.columns.advantage.device
        ids = _pad([s.ids for s in batch]).to(device)
        row, token = (
            torch.from_numpy(np.concatenate([getattr(s, n) for s in batch])) for n in ("row", "token")
        )
        line = torch.arange(len(batch)).repeat_interleave(torch.tensor([len(s.row) for s in batch]))
        hidden = self.model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        logits = self.model.get_output_embeddings()(hidden[line, row]).float()
        logprob = logits.log_softmax(-1).gather(-1, ids[line, row + 1][:, None])[:, 0]
        return token.to(device), logprob


def _students(turns: Sequence[Turn]) -> list[Scored]:
    return _scored([(turn.context, turn.action) for turn in turns])


def _teachers(turns: Sequence[Turn]) -> list[Scored]:
    return _scored([(t.teacher_context, t.action) for t in turns if t.teacher_context is not None])


def _scored(pairs: list[tuple[Ids, Ids]]) -> list[Scored]:
    sequences, first = [], 0
    for context, action in pairs:
        offset = np.arange(len(action))
        sequences.append(Scored(np.concatenate([context, action]), len(context) - 1 + offset, first + offset))
        first += len(action)
    return sequences


def _pad(sequences: Sequence[Ids]) -> Tensor:
    ids = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.int64)
    for line, sequence in zip(ids, sequences, strict=True):
        line[: len(sequence)] = torch.from_numpy(sequence)
    return ids
