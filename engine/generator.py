"""Generation: continuous batching over live sequences with a paged KV cache.

A `Session` is one growing sequence. Turns are submitted and come back from `step`, which computes one
token for every running session and, in the same forward pass, a bounded number of prompt and observation
rows. Between turns a session keeps its pages, so only what was added to it is computed. A new session
starts from the longest prefix that a live session has computed; while another is still computing a longer
one, it waits.

A session is admitted once the pages of its whole turn are free, so a running one never runs out of them;
the others wait. When nothing could run otherwise, waiting sessions lose their pages and are computed again.

A row's result does not depend on the rows around it: attention and sampling work row by row, and matrix
products do when the number of rows is a multiple of `row_multiple`. (fp32 torch on x86, inner sizes up to
11,008, 4 to 2,048 rows, 1 to 4 threads: multiples of 4 give the same bits; fewer than 4 rows, or an odd
remainder in one thread's share, run other GEMM kernels.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sprout.engine.model import Decoder
from sprout.engine.residency import GenerationStats, Residency
from sprout.engine.sequences import (
    LENGTH,
    RUNNING,
    STOP,
    Float32,
    Int64,
    Sequences,
    SequenceTable,
    StepRows,
    append_sampled,
    pad_step,
    plan_step,
)
from sprout.engine.stopping import StopStrings
from sprout.kernels import linear, sample

Ids: TypeAlias = Sequence[int] | Int64


class Session:
    """A live sequence of a `Generator`; `ids` grows by `extend` and by sampling."""

    def __init__(self, generator: Generator, row: int) -> None:
        self._generator = generator
        self.row = row

    def __len__(self) -> int:
        return int(self._generator.table.known[self.row])

    @property
    def ids(self) -> Int64:
        """[len] a copy of all ids: everything given and everything sampled."""
        return self._generator.table.token[self.row, : len(self)].copy()

    def extend(self, ids: Ids) -> None:
        """Append ids, such as the next observation; they are computed with the next turn."""
        self._generator.extend(self, ids)

    def fork(self) -> Session:
        """A new session with the same ids, which starts from the pages this one has computed."""
        return self._generator.open(self.ids)


@dataclass(frozen=True)
class Completion:
    """One sampled turn: ids [n] and their log-probs [n] at the sampling temperature (at 1 when greedy).

    The ids, with the stop token if there is one, are in the session too. `finished` is "stop" or "length".
    """

    session: Session
    ids: Int64
    logprobs: Float32
    finished: str


class Generator:
    """Samples turns of many sessions at once, with the decoder's own weights.

    stop_id        the id or ids that end a turn
    cache_tokens   positions that the KV cache holds; shared pages count once
    page_size      positions per page
    max_rows       rows per forward pass, and so the most sessions that run at once
    row_multiple   forward passes are padded to a multiple of this many rows (see the module)
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        stop_id: int | Iterable[int],
        cache_tokens: int,
        page_size: int = 16,
        max_rows: int = 1024,
        row_multiple: int = 8,
    ) -> None:
        sizes = dict(
            cache_tokens=cache_tokens, page_size=page_size, max_rows=max_rows, row_multiple=row_multiple
        )
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.decoder = decoder
        self.cache_tokens, self.page_size = cache_tokens, page_size
        self.max_rows, self.row_multiple = max_rows, row_multiple
        self.stats = GenerationStats()
        self._sequences = Sequences()
        self._residency = Residency(decoder, self._sequences, self.stats, cache_tokens, page_size)
        self._rows = StepRows.buffers(max_rows + row_multiple)
        self._end: Int64 = np.zeros(max_rows, np.int64)
        self._sessions: dict[int, Session] = {}
        self._stop_strings: dict[int, StopStrings] = {}
        self._queue: deque[int] = deque()
        self._running: Int64 = np.zeros(0, np.int64)
        self._is_stop = np.zeros(decoder.config.vocab_size, np.bool_)
        stops = np.array([stop_id] if isinstance(stop_id, int) else list(stop_id), np.int64)
        self._check_ids(stops, "stop_id")
        self._is_stop[stops] = True

    @property
    def table(self) -> SequenceTable:
        return self._sequences.table

    @property
    def busy(self) -> bool:
        """Whether any submitted turn is unfinished."""
        return bool(self._queue) or len(self._running) > 0

    def open(self, ids: Ids) -> Session:
        """A new session that begins with these ids."""
        new = np.asarray(ids, np.int64)
        if len(new) == 0:
            raise ValueError("a session needs at least one id to begin with")
        self._check_ids(new, "ids")
        self.decoder.check_length(len(new))
        row = self._sequences.add()
        self._residency.cache.reserve(len(self.table.known), 1)
        self._sequences.append(row, new)
        session = self._sessions[row] = Session(self, row)
        return session

    def extend(self, session: Session, ids: Ids) -> None:
        """Append ids to an idle session.

        Raises ValueError for ids outside the vocabulary and past the model's context.
        """
        self._check_idle(session)
        new = np.asarray(ids, np.int64)
        self._check_ids(new, "ids")
        self.decoder.check_length(len(session) + len(new))
        self._sequences.append(session.row, new)

    def submit(
        self,
        session: Session,
        *,
        max_new_tokens: int,
        key: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        stop_strings: StopStrings | None = None,
    ) -> None:
        """Queue the next turn of an idle session.

        `key` (see `derive_key`) and a token's index within the turn fix its random number; temperature 0 is
        greedy. The turn ends at the first stop id, or with the token that completes one of `stop_strings`.
        Raises ValueError if the turn could outgrow the model's context or the cache.
        """
        self._check_idle(session)
        _check_sampling(max_new_tokens, temperature, top_p)
        row, limit = session.row, len(session) + max_new_tokens
        self.decoder.check_length(limit)
        if not self._residency.fits(limit - 1):
            raise ValueError(
                f"a turn of {len(session)} + {max_new_tokens} tokens never fits "
                f"cache_tokens={self.cache_tokens}; raise cache_tokens or lower max_new_tokens"
            )
        self._sequences.reserve(limit)
        t = self.table
        t.start[row], t.limit[row], t.key[row] = len(session), limit, key
        t.temperature[row], t.top_p[row] = temperature, top_p
        if stop_strings is not None:
            self._stop_strings[row] = stop_strings
        self._queue.append(row)

    def step(self) -> list[Completion]:
        """Admit what fits, compute one forward pass, and return the turns that it finished."""
        self._admit()
        if len(self._running) == 0:
            return []
        rows, sampled = plan_step(
            self.table, self._residency.cache.table, self.page_size, self._running, self.max_rows, self._rows
        )
        padded, padded_sampled = pad_step(self._rows, rows, sampled, self.row_multiple)
        hidden = self._decode(padded)
        if sampled < rows:
            hidden = hidden[self._tensor(self._rows.sampled_row[:padded_sampled])]
        token, logprob = self._sample(hidden, sampled)
        self.table.computed[self._running] += self._rows.advance[: len(self._running)]
        self.stats.steps += 1
        self.stats.rows += rows
        self.stats.sampled += sampled
        return self._append(token, logprob)

    def close(self, session: Session) -> None:
        """End a session, running or not, and free its pages."""
        row = session.row
        assert self._sessions.get(row) is session, "the session is closed already"
        self._stop(np.array([row]))
        if row in self._queue:
            self._queue.remove(row)
        self._stop_strings.pop(row, None)
        self._residency.keep(row, 0)
        self._sequences.remove(row)
        del self._sessions[row]
        session.row = 0

    def reset(self) -> None:
        """Say that the weights change. Keys and values from before are void, so no session may be alive."""
        assert not self._sessions, f"{len(self._sessions)} sessions are alive while the weights change"
        assert self._residency.is_empty

    def _check_idle(self, session: Session) -> None:
        assert self._sessions.get(session.row) is session, "the session is closed"
        if self.table.running[session.row] or session.row in self._queue:
            raise ValueError("the session's last turn is not finished; wait for its completion")

    def _check_ids(self, ids: Int64, name: str) -> None:
        vocabulary = len(self._is_stop)
        outside = ids[(ids < 0) | (ids >= vocabulary)]
        if len(outside):
            raise ValueError(f"{name} holds {outside[0]}, outside the model's vocabulary of {vocabulary}")

    def _admit(self) -> None:
        """Start queued turns: sessions that hold pages first, then the rest in order of arrival."""
        order = sorted(self._queue, key=lambda row: bool(self.table.pages[row] == 0))
        for row in order:
            if len(self._running) == self.max_rows:
                return
            prefix = self._residency.prefix(row)
            if prefix.grows:
                continue
            if self._residency.place(row, prefix):
                self._start(row)
            elif prefix.source != row:
                break
        if order and len(self._running) == 0:
            self._residency.make_room(order[0], list(self._queue), self._sessions)
            self._start(order[0])

    def _start(self, row: int) -> None:
        self._queue.remove(row)
        self.table.running[row] = True
        self._running = np.append(self._running, row)

    def _stop(self, rows: Int64) -> None:
        self.table.running[rows] = False
        self._running = self._running[self.table.running[self._running]]

    def _decode(self, rows: int) -> Tensor:
        r = self._rows
        token, position, slot, sequence, length = (
            self._tensor(values[:rows]) for values in (r.token, r.position, r.slot, r.sequence, r.length)
        )
        self._residency.cache.upload()
        return self.decoder.decode(token, position, self._residency.cache, sequence, length, slot)

    @torch.no_grad()
    def _sample(self, hidden: Tensor, count: int) -> tuple[Int64, Float32]:
        """Next tokens [count] and their log-probs of the first `count` hidden rows."""
        r = self._rows
        logits = linear(hidden, self.decoder.head_weight)[:count]
        token, logprob = sample(
            logits,
            temperature=self._tensor(r.temperature[:count]),
            top_p=self._tensor(r.top_p[:count]),
            key=self._tensor(r.key[:count]),
            position=self._tensor(r.draw[:count]),
        )
        return token.cpu().numpy(), logprob.cpu().numpy()

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self.decoder.device)

    def _append(self, token: Int64, logprob: Float32) -> list[Completion]:
        rows, end = self._rows.sampled_sequence[: len(token)], self._end[: len(token)]
        append_sampled(self.table, rows, token, logprob, self._is_stop, end)
        self._end_at_strings(rows, end)
        ended = end != RUNNING
        if not ended.any():
            return []
        self._stop(rows[ended])
        return [self._complete(int(row), int(why)) for row, why in zip(rows[ended], end[ended], strict=True)]

    def _end_at_strings(self, rows: Int64, end: Int64) -> None:
        t = self.table
        for place, row in enumerate(rows.tolist() if self._stop_strings else ()):
            strings = self._stop_strings.get(row)
            if strings is not None and strings.ends(t.token[row, t.start[row] : t.known[row]]):
                end[place] = STOP

    def _complete(self, row: int, end: int) -> Completion:
        t = self.table
        self._stop_strings.pop(row, None)
        self._residency.keep(row, self._residency.pages_for(int(t.computed[row])))
        response = slice(int(t.start[row]), int(t.known[row]))
        ids, logprobs = t.token[row, response].copy(), t.logprob[row, response].copy()
        return Completion(self._sessions[row], ids, logprobs, "length" if end == LENGTH else "stop")


def _check_sampling(max_new_tokens: int, temperature: float, top_p: float) -> None:
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
    if not temperature >= 0:
        raise ValueError(f"temperature must be 0 (greedy) or more, not {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1], not {top_p}")
