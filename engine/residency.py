"""Which live sequence holds which pages of the KV cache, and what it has computed in them.

A sequence is given the pages of its whole turn at once, those of the longest computed prefix of another live
sequence first. Pages that nobody holds are free; when none are left, waiting sequences lose theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sprout.engine.model import Decoder
from sprout.engine.pages import PageAllocator, PagedCache, Pages
from sprout.engine.sequences import Sequences, SequenceTable, longest_prefix


@dataclass
class GenerationStats:
    """Counts since the generator was made.

    steps, rows   forward passes, and the rows in them without padding
    sampled       tokens sampled
    shared        positions taken from another session's pages
    evicted       times a waiting session lost its pages
    """

    steps: int = 0
    rows: int = 0
    sampled: int = 0
    shared: int = 0
    evicted: int = 0


class Prefix(NamedTuple):
    """`length` leading positions are in the pages of sequence `source`; `grows` if waiting brings more."""

    source: int
    length: int
    grows: bool


class Residency:
    """The pages of all sequences of one generator: `cache_tokens` positions in pages of `page_size`."""

    def __init__(
        self,
        decoder: Decoder,
        sequences: Sequences,
        stats: GenerationStats,
        cache_tokens: int,
        page_size: int,
    ) -> None:
        self.page_size = page_size
        pages = self.pages_for(cache_tokens) + 1
        self.allocator = PageAllocator(pages)
        self.cache = PagedCache.for_decoder(decoder, pages, page_size)
        self.stats = stats
        self._sequences = sequences

    @property
    def table(self) -> SequenceTable:
        return self._sequences.table

    def pages_for(self, positions: int) -> int:
        """Pages that hold so many positions."""
        return -(-positions // self.page_size)

    def fits(self, positions: int) -> bool:
        """Whether a sequence of so many positions could ever be placed, alone."""
        return self.pages_for(positions) < len(self.allocator.references)

    @property
    def is_empty(self) -> bool:
        """Whether no sequence holds a page."""
        return self.allocator.free == len(self.allocator.references) - 1

    def prefix(self, row: int) -> Prefix:
        """What the sequence can start from: its own pages, or the longest prefix in another's."""
        if self.table.pages[row]:
            return Prefix(row, int(self.table.computed[row]), False)
        source, length, running_source, running_length = longest_prefix(self.table, row)
        most = int(self.table.known[row]) - 1
        gain = min(running_length, most) - min(length, most)
        grows = gain >= self.page_size or (gain > 0 and running_source == source)
        return Prefix(source, min(length, most), grows)

    def place(self, row: int, prefix: Prefix) -> bool:
        """Give the sequence pages for its whole turn, the prefix first; False if too few are free."""
        own = prefix.source == row
        shared, rest = divmod(0 if own else prefix.length, self.page_size)
        need = self.pages_for(int(self.table.limit[row]) - 1) - int(self.table.pages[row]) - shared
        if need > self.allocator.free:
            return False
        if shared:
            self._share(row, self.cache.table[prefix.source, :shared].copy())
        self._hold(row, self.allocator.take(need))
        if rest:
            self.cache.copy_page(*self.cache.table[[prefix.source, row], shared])
        if not own:
            self.table.computed[row] = prefix.length
            self.stats.shared += prefix.length
        return True

    def _share(self, row: int, pages: Pages) -> None:
        self.allocator.share(pages)
        self._hold(row, pages)

    def _hold(self, row: int, pages: Pages) -> None:
        self.cache.assign(row, int(self.table.pages[row]), pages)
        self.table.pages[row] += len(pages)

    def keep(self, row: int, count: int) -> None:
        """Give back all but the first `count` pages of the sequence."""
        t = self.table
        self.allocator.release(self.cache.table[row, count : t.pages[row]])
        t.pages[row] = min(count, int(t.pages[row]))
        t.computed[row] = min(int(t.computed[row]), count * self.page_size)

    def make_room(self, row: int, queued: Sequence[int], live: Iterable[int]) -> None:
        """Place the sequence by taking the pages of others, none of which runs: idle ones first."""
        idle = [other for other in live if other not in queued]
        for victim in [*idle, *reversed(queued)]:
            if victim != row and self.table.pages[victim]:
                self.keep(victim, 0)
                self.stats.evicted += 1
                if self.place(row, self.prefix(row)):
                    return
        raise AssertionError("a turn that fits the cache alone was not placed in an empty one")
