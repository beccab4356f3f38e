"""The forest: every distinct prefix of a set of sequences, stored once.

A `Turn` is what the recipe hands over: a context, the action sampled after it, and optionally the same
context with a skill in it. `Forest.pack` finds all sharing between them by itself. It sorts the sequences
lexicographically (their big-endian bytes compare like their ids), so the longest common prefix of
neighbours says where new rows begin, and one pass over a stack of open rows gives each row its subtree:

    row j is visible to row i   iff   enter[j] <= enter[i] < exit[j]

Rows used by any student sequence are *trained*. The rest, skill blocks and what follows them, are
*scored-only*. Memory order is [trained rows, DFS][scored-only rows, DFS]. Trained rows never see
scored-only rows, so no gradient can reach them. Rows that predict a scored token are *read*: what the last
layer does after its attention, and the head, is computed for them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from sprout.kernels.tree_attention.intervals import Intervals

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Turn:
    """One sampled action and what training on it needs. All arrays are 1-D.

    context          ids of the ordinary history h, at least one
    action           ids of the response a, at least one
    teacher_context  ids of h with the skill; None when the turn has no teacher
    mask             [len(action)] 1 where the RL loss applies; default all ones
    opd_mask         [len(action)] 1 where distillation applies; default `mask`
    advantage, old_logprob, ref_logprob, skill_logprob   [len(action)] per-token values; None when not used
    """

    context: Ids
    action: Ids
    teacher_context: Ids | None = None
    mask: Floats | None = None
    opd_mask: Floats | None = None
    advantage: Floats | None = None
    old_logprob: Floats | None = None
    ref_logprob: Floats | None = None
    skill_logprob: Floats | None = None

    def __post_init__(self) -> None:
        for name in ("context", "action"):
            if len(getattr(self, name)) == 0:
                raise ValueError(f"turn has an empty {name}: a scored token needs a predecessor and a target")
        if self.teacher_context is not None and len(self.teacher_context) == 0:
            raise ValueError("turn has an empty teacher_context: pass None for a turn without a teacher")
        for name in ("mask", "opd_mask", "advantage", "old_logprob", "ref_logprob", "skill_logprob"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.action):
                raise ValueError(f"turn.{name} has {len(values)} values for {len(self.action)} action tokens")


@dataclass(frozen=True)
class ForestStats:
    """Sizes of a forest, with and without sharing."""

    logical_tokens: int
    rows: int
    trained_rows: int
    visible_pairs: int
    logical_pairs: int

    @property
    def reuse_ratio(self) -> float:
        """Logical tokens per stored row."""
        return self.logical_tokens / max(self.rows, 1)


@dataclass(frozen=True)
class Forest:
    """Packed turns. R rows, T of them trained, Q of them read; M logical (turn, action token) pairs.

    token, position             [R] int64; position is the depth in the sequence
    enter, exit                 [R] int32, the visibility intervals in DFS numbering
    trained                     T
    read                        [Q] int64, ascending: the rows that predict a token of some pair
    trained_read                how many of them are trained
    student_row, teacher_row    [M] int64 which of the read rows predicts the token; -1 without a teacher
    target                      [M] int64 the token itself
    turn                        [M] int64 index of the turn it belongs to
    """

    token: torch.Tensor
    position: torch.Tensor
    enter: torch.Tensor
    exit: torch.Tensor
    trained: int
    read: torch.Tensor
    trained_read: int
    student_row: torch.Tensor
    teacher_row: torch.Tensor
    target: torch.Tensor
    turn: torch.Tensor
    trained_intervals: Intervals
    scored_intervals: Intervals
    logical_lengths: tuple[NDArray[np.int64], NDArray[np.int64]]  # student and teacher sequence lengths

    @property
    def rows(self) -> int:
        return self.token.shape[0]

    @staticmethod
    def pack(turns: Sequence[Turn], device: torch.device | str = "cpu") -> Forest:
        """Build the forest of all student and teacher sequences of `turns`.

        The last token of a sequence predicts nothing, so it gets a row only where another sequence goes on
        from it. An empty list gives an empty forest.
        """
        students = [np.concatenate([t.context, t.action]) for t in turns]
        contexts = [(i, t.teacher_context) for i, t in enumerate(turns) if t.teacher_context is not None]
        teachers = [np.concatenate([context, turns[i].action]) for i, context in contexts]
        lengths = np.array([len(t.action) for t in turns], dtype=np.int64)

        rows = _build([s[:-1] for s in students + teachers], trained_sequences=len(students))
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        student_row = np.empty(starts[-1], dtype=np.int64)
        teacher_row = np.full(starts[-1], -1, dtype=np.int64)
        for i, turn in enumerate(turns):
            student_row[starts[i] : starts[i + 1]] = rows.of(i)[len(turn.context) - 1 :]
        for s, (i, context) in enumerate(contexts):
            teacher_row[starts[i] : starts[i + 1]] = rows.of(len(students) + s)[len(context) - 1 :]
        read = np.union1d(student_row, teacher_row[teacher_row >= 0])

        def tensor(values: NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(values).to(device)

        enter, exit_ = tensor(rows.enter), tensor(rows.exit)
        T = rows.trained
        return Forest(
            token=tensor(rows.token),
            position=tensor(rows.position),
            enter=enter,
            exit=exit_,
            trained=T,
            read=tensor(read),
            trained_read=int((read < T).sum()),
            student_row=tensor(np.searchsorted(read, student_row)),
            teacher_row=tensor(np.where(teacher_row < 0, -1, np.searchsorted(read, teacher_row))),
            target=tensor(np.concatenate([t.action for t in turns]) if turns else np.zeros(0, np.int64)),
            turn=tensor(np.repeat(np.arange(len(turns)), lengths)),
            trained_intervals=Intervals(enter[:T], enter[:T], exit_[:T]),
            scored_intervals=Intervals(enter[T:], enter, exit_),
            logical_lengths=(_lengths(students), _lengths(teachers)),
        )

    def stats(self) -> ForestStats:
        """Row counts and attention pairs, with and without sharing."""
        logical = np.concatenate(self.logical_lengths)
        return ForestStats(
            logical_tokens=int(logical.sum()),
            rows=self.rows,
            trained_rows=self.trained,
            visible_pairs=int(self.position.sum()) + self.rows,
            logical_pairs=int((logical * (logical + 1) // 2).sum()),
        )


@dataclass(frozen=True)
class _Rows:
    token: Ids
    position: Ids
    enter: NDArray[np.int32]
    exit: NDArray[np.int32]
    trained: int
    row_of: Ids  # flat: row of every position of every sequence
    offset: Ids

    def of(self, sequence: int) -> Ids:
        return self.row_of[self.offset[sequence] : self.offset[sequence + 1]]


def _lengths(sequences: list[Ids]) -> Ids:
    return np.array([len(s) for s in sequences], dtype=np.int64)


def _build(sequences: list[Ids], trained_sequences: int) -> _Rows:
    offset = np.concatenate([[0], np.cumsum(_lengths(sequences))]).astype(np.int64)
    flat = np.concatenate(sequences).astype(np.int64) if sequences else np.zeros(0, np.int64)
    # A shorter prefix sorts before its continuations, so a plain bytes comparison is a DFS order.
    keys = [s.astype(">u4").tobytes() for s in sequences]
    order = np.array(sorted(range(len(sequences)), key=keys.__getitem__), dtype=np.int64)
    token, position, exit_, trained, row_of = _walk(flat, offset, order, trained_sequences)
    rank = np.argsort(~trained, kind="stable")  # trained rows first, DFS order kept in both halves
    place = np.empty_like(rank)
    place[rank] = np.arange(len(rank))
    return _Rows(
        token=token[rank],
        position=position[rank],
        enter=rank.astype(np.int32),
        exit=exit_[rank].astype(np.int32),
        trained=int(trained.sum()),
        row_of=place[row_of],
        offset=offset,
    )


@numba.njit(cache=True)
def _walk(flat, offset, order, trained_sequences):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Insert the sorted sequences one after the other; `path[d]` is the open row at depth d."""
    total = flat.shape[0]
    token, position = np.empty(total, np.int64), np.empty(total, np.int64)
    exit_, row_of = np.empty(total, np.int64), np.empty(total, np.int64)
    trained = np.zeros(total, np.bool_)
    path = np.empty(total, np.int64)
    rows, depth = 0, 0
    for s in order:
        begin, length = offset[s], offset[s + 1] - offset[s]
        shared = 0
        while shared < min(depth, length) and token[path[shared]] == flat[begin + shared]:
            shared += 1
        for d in range(shared, depth):
            exit_[path[d]] = rows
        for d in range(shared, length):
            token[rows], position[rows], path[d] = flat[begin + d], d, rows
            rows += 1
        # A shorter sequence can only be followed by its continuations, never cut an open path below it.
        depth = length
        for d in range(length):
            row_of[begin + d] = path[d]
        if s < trained_sequences:
            d = length - 1
            while d >= 0 and not trained[path[d]]:
                trained[path[d]] = True
                d -= 1
    for d in range(depth):
        exit_[path[d]] = rows
    return token[:rows], position[:rows], exit_[:rows], trained[:rows], row_of
