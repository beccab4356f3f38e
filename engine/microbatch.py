"""Split turns into micro-batches by rows, keeping turns that share most together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sprout.engine.forest import Ids, Turn


def split_turns(turns: Sequence[Turn], rows_per_micro_batch: int) -> list[list[int]]:
    """Indices of `turns` in groups whose forests have at most `rows_per_micro_batch` rows each.

    In lexicographic order of the student sequences a turn costs the rows it does not share with its
    predecessor, so filling in that order keeps branches of one trunk together. Raises ValueError for a turn
    that cannot fit alone.
    """
    students = [np.concatenate([t.context, t.action]) for t in turns]
    keys = [s.astype(">u4").tobytes() for s in students]
    groups: list[list[int]] = []
    room, previous = 0, None
    for i in sorted(range(len(turns)), key=keys.__getitem__):
        rows = _new_rows(students[i], previous) + _teacher_rows(turns[i])
        if rows > room:
            groups.append([])
            room, rows = rows_per_micro_batch, len(students[i]) + _teacher_rows(turns[i])
            if rows > room:
                raise ValueError(
                    f"train.rows_per_micro_batch is {rows_per_micro_batch}, but a turn needs {rows}; raise it"
                )
        groups[-1].append(i)
        room, previous = room - rows, students[i]
    return groups


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
