"""Split turns into micro-batches by rows, keeping turns that share most together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sprout.engine import parallel
from sprout.engine.forest import Ids, Turn


def split_turns(turns: Sequence[Turn], rows_per_micro_batch: int) -> list[list[int]]:
    """Indices of `turns` in groups whose forests have at most `rows_per_micro_batch` rows each.

    With several ranks the groups are small enough for each rank to get some. In lexicographic order of the
    student sequences a turn costs the rows it does not share with its predecessor, so filling in that order
    keeps branches of one trunk together. Raises ValueError for a turn that cannot fit alone.
    """
    students = [np.concatenate([t.context, t.action]) for t in turns]
    keys = [s.astype(">u4").tobytes() for s in students]
    order = sorted(range(len(turns)), key=keys.__getitem__)
    alone = [rows_alone(turn) for turn in turns]
    if max(alone, default=0) > rows_per_micro_batch:
        raise ValueError(
            f"train.rows_per_micro_batch is {rows_per_micro_batch}, but a turn needs {max(alone)}; raise it"
        )
    after = [
        _new_rows(students[i], students[before] if before is not None else None) + _teacher_rows(turns[i])
        for before, i in zip([None, *order], order, strict=False)
    ]
    budget = min(rows_per_micro_batch, max(*alone, -(-sum(after) // parallel.world_size()))) if turns else 0
    groups: list[list[int]] = []
    room = 0
    for i, rows in zip(order, after, strict=True):
        if rows > room or not groups:
            groups.append([])
            room, rows = budget, alone[i]
        groups[-1].append(i)
        room -= rows
    return groups


def own_groups(turns: Sequence[Turn], rows_per_micro_batch: int) -> list[list[int]]:
    """This rank's groups of `split_turns`, as many as every other rank's: an empty group costs nothing."""
    groups = split_turns(turns, rows_per_micro_batch)
    sizes = [sum(len(turns[i].context) + len(turns[i].action) for i in group) for group in groups]
    return [[] if index is None else groups[index] for index in parallel.deal(sizes)]


def rows_alone(turn: Turn) -> int:
    """Rows of the forest of one turn."""
    return len(turn.context) + len(turn.action) + _teacher_rows(turn)


def _new_rows(sequence: Ids, previous: Ids | None) -> int:
    return len(sequence) if previous is None else len(sequence) - common_prefix(sequence, previous)


def _teacher_rows(turn: Turn) -> int:
    if turn.teacher_context is None:
        return 0
    shared = common_prefix(turn.teacher_context, turn.context)
    return len(turn.teacher_context) - shared + len(turn.action)


def common_prefix(a: Ids, b: Ids) -> int:
    """Length of the longest common prefix of two id arrays."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
