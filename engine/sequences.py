"""Live sequences as arrays, and the loops over them that run once per generation step.

Row s of every array is one sequence; row 0 is never used, so that padding rows have a place to point to.
Everything here lives on the host; numba keeps a step over hundreds of sequences in the microseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]
RUNNING, STOP, LENGTH = 0, 1, 2


class SequenceTable(NamedTuple):
    """Per sequence: its tokens, how far its keys and values are computed, and the response being sampled.

    token, logprob   [S, C] ids, and log-probs where an id was sampled
    known            [S] number of ids
    computed         [S] number of leading positions whose keys and values are in the cache
    pages            [S] number of pages held
    start, limit     [S] `known` at the first token of the response, and where the response is cut
    key, temperature, top_p   [S] how the response is sampled
    running          [S] whether the next step gives it rows
    """

    token: Int64
    logprob: Float32
    known: Int64
    computed: Int64
    pages: Int64
    start: Int64
    limit: Int64
    key: Int64
    temperature: Float32
    top_p: Float32
    running: Bool

    @staticmethod
    def zeros(sequences: int, tokens: int) -> SequenceTable:
        matrices = np.zeros((sequences, tokens), np.int64), np.zeros((sequences, tokens), np.float32)
        kinds = [np.int64] * 6 + [np.float32] * 2 + [np.bool_]
        return SequenceTable._make([*matrices, *(np.zeros(sequences, kind) for kind in kinds)])

    def resized(self, sequences: int, tokens: int) -> SequenceTable:
        """A larger table with the same content."""
        new = SequenceTable.zeros(sequences, tokens)
        for name in self._fields:
            old = getattr(self, name)
            getattr(new, name)[tuple(slice(n) for n in old.shape)] = old
        return new


class Sequences:
    """A growing `SequenceTable` and its unused rows."""

    def __init__(self) -> None:
        self.table = SequenceTable.zeros(1, 1)
        self._unused: list[int] = []

    def add(self) -> int:
        """A fresh row."""
        if not self._unused:
            rows, tokens = self.table.token.shape
            self.table = self.table.resized(max(2 * rows, 16), tokens)
            self._unused = list(range(len(self.table.known) - 1, rows - 1, -1))
        row = self._unused.pop()
        self.table.known[row] = self.table.computed[row] = self.table.pages[row] = 0
        return row

    def remove(self, row: int) -> None:
        assert self.table.pages[row] == 0 and not self.table.running[row]
        self.table.known[row] = 0
        self._unused.append(row)

    def append(self, row: int, ids: Int64) -> None:
        known = int(self.table.known[row])
        self.reserve(known + len(ids))
        self.table.token[row, known : known + len(ids)] = ids
        self.table.known[row] += len(ids)

    def reserve(self, tokens: int) -> None:
        """Make room for sequences of this many tokens."""
        rows, room = self.table.token.shape
        if tokens > room:
            self.table = self.table.resized(rows, max(tokens, 2 * room))


class StepRows(NamedTuple):
    """The n rows of one step, and the m of them that need a next token.

    token, position, slot, sequence, length   [n] the arguments of `Decoder.decode`
    sampled_row, sampled_sequence             [m] row of each next token, and the sequence it belongs to
    key, draw, temperature, top_p             [m] the arguments of `kernels.sample`
    advance                                   [running] number of rows given to each running sequence
    """

    token: Int64
    position: Int64
    slot: Int64
    sequence: Int32
    length: Int32
    sampled_row: Int64
    sampled_sequence: Int64
    key: Int64
    draw: Int64
    temperature: Float32
    top_p: Float32
    advance: Int64

    @staticmethod
    def buffers(size: int) -> StepRows:
        kinds = [np.int64] * 3 + [np.int32] * 2 + [np.int64] * 4 + [np.float32] * 2 + [np.int64]
        return StepRows._make(np.zeros(size, kind) for kind in kinds)


@numba.njit(cache=True)
def plan_step(
    table: SequenceTable, pages: Int32, page_size: int, running: Int64, budget: int, rows: StepRows
) -> tuple[int, int]:
    """Fill `rows` with up to `budget` rows of the running sequences; returns their counts (n, m).

    First every sequence that only lacks a next token, then prompts and observations in order of arrival.
    `pages` [S, max_pages] is the page table.
    """
    n = m = 0
    for decoding in (True, False):
        for i in range(len(running)):
            s = running[i]
            done = table.computed[s]
            pending = table.known[s] - done
            if (pending == 1) != decoding:
                continue
            count = min(pending, budget - n)
            rows.advance[i] = count
            for p in range(done, done + count):
                rows.token[n] = table.token[s, p]
                rows.position[n] = p
                rows.slot[n] = pages[s, p // page_size] * page_size + p % page_size
                rows.sequence[n] = s
                rows.length[n] = p + 1
                n += 1
            if count == pending:
                rows.sampled_row[m] = n - 1
                rows.sampled_sequence[m] = s
                rows.key[m] = table.key[s]
                rows.draw[m] = table.known[s] - table.start[s]
                rows.temperature[m] = table.temperature[s]
                rows.top_p[m] = table.top_p[s]
                m += 1
    return n, m


def pad_step(rows: StepRows, n: int, m: int, multiple: int) -> tuple[int, int]:
    """Pad both counts to a multiple with rows that read and write page 0; returns the padded counts."""
    end, sampled_end = -(-n // multiple) * multiple, -(-m // multiple) * multiple
    for values in (rows.token, rows.position, rows.slot, rows.sequence):
        values[n:end] = 0
    rows.length[n:end] = 1
    rows.sampled_row[m:sampled_end] = 0
    return end, sampled_end


@numba.njit(cache=True)
def append_sampled(
    table: SequenceTable,
    sequence: Int64,
    token: Int64,
    logprob: Float32,
    is_stop: NDArray[np.bool_],
    end: Int64,
) -> None:
    """Append one sampled token to each `sequence` [m]; `end` [m] becomes RUNNING, STOP or LENGTH.

    `is_stop` [V] marks the stop ids.
    """
    for j in range(len(sequence)):
        s = sequence[j]
        known = table.known[s]
        table.token[s, known] = token[j]
        table.logprob[s, known] = logprob[j]
        table.known[s] = known + 1
        end[j] = STOP if is_stop[token[j]] else LENGTH if known + 1 == table.limit[s] else RUNNING


@numba.njit(cache=True)
def longest_prefix(table: SequenceTable, s: int) -> tuple[int, int, int, int]:
    """The longest prefixes that sequence s shares with other sequences that hold pages.

    Returns (sequence, positions), counting computed positions, and the same for all ids of running ones.
    """
    source = length = running_source = running_length = 0
    for other in range(1, len(table.known)):
        if other == s or table.pages[other] == 0:
            continue
        most = min(table.known[s], table.known[other])
        common = 0
        while common < most and table.token[s, common] == table.token[other, common]:
            common += 1
        if table.running[other] and common > running_length:
            running_source, running_length = other, common
        if min(common, table.computed[other]) > length:
            source, length = other, min(common, table.computed[other])
    return source, length, running_source, running_length
