"""The paged KV cache: fixed-size pages, reference counts, and one page table for all live sequences.

A page holds the keys and values of `page_size` consecutive positions, for every layer. Sequences with a
common prefix share its full pages (reference counts); the page in which they part is copied, so a sequence
only ever writes into pages of its own. Page 0 belongs to nobody: padding rows write there.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sprout.engine.model import Decoder

Pages = NDArray[np.int32]


class PageAllocator:
    """Reference counts and the free list of `pages` pages; page 0 is never handed out."""

    def __init__(self, pages: int) -> None:
        self.references = np.zeros(pages, np.int32)
        self._free = np.arange(pages - 1, 0, -1, dtype=np.int32)
        self.free = pages - 1

    def take(self, count: int) -> Pages:
        """`count` unused pages, each with one reference. The caller has checked `free`."""
        assert 0 <= count <= self.free, f"{count} pages wanted, {self.free} free"
        self.free -= count
        pages = self._free[self.free : self.free + count].copy()
        self.references[pages] = 1
        return pages

    def share(self, pages: Pages) -> None:
        """One more reference to each of these distinct pages."""
        assert (self.references[pages] > 0).all()
        self.references[pages] += 1

    def release(self, pages: Pages) -> None:
        """One reference less to each of these distinct pages; those without any become free."""
        assert (self.references[pages] > 0).all()
        self.references[pages] -= 1
        unused = pages[self.references[pages] == 0]
        self._free[self.free : self.free + len(unused)] = unused
        self.free += len(unused)


class PagedCache:
    """Keys and values of all layers, and which pages each sequence has.

    k, v         one tensor per layer, [P, page_size, Hkv, D]
    page_table   [S, max_pages] int32 on the device of k; `table` is the same as a numpy array to write to
    """

    def __init__(self, storage: Tensor) -> None:
        """storage [2, layers, P, page_size, Hkv, D]"""
        self._storage = storage
        self.k: list[Tensor] = list(storage[0])
        self.v: list[Tensor] = list(storage[1])
        self.table: Pages = np.zeros((0, 0), np.int32)
        self.reserve(1, 1)

    @staticmethod
    def for_decoder(decoder: Decoder, pages: int, page_size: int) -> PagedCache:
        """A cache of `pages` pages in the decoder's dtype and on its device."""
        c = decoder.config
        shape = (2, c.layers, pages, page_size, c.kv_heads, c.head_size)
        # Zeroed, because attention may multiply what lies behind the written positions of a page by zero.
        return PagedCache(torch.zeros(shape, device=decoder.device, dtype=decoder.dtype))

    def reserve(self, sequences: int, pages: int) -> None:
        """Make the page table at least this large, keeping its content."""
        old = self.table
        if sequences <= old.shape[0] and pages <= old.shape[1]:
            return
        self.table = np.zeros((max(sequences, old.shape[0]), max(pages, old.shape[1])), np.int32)
        self.table[: old.shape[0], : old.shape[1]] = old
        self.page_table = torch.from_numpy(self.table).to(self._storage.device)
        self._changed = False

    def assign(self, sequence: int, at: int, pages: Pages) -> None:
        """Let these be the sequence's pages from its `at`-th on."""
        if at + len(pages) > self.table.shape[1]:
            self.reserve(1, max(at + len(pages), 2 * self.table.shape[1]))
        self.table[sequence, at : at + len(pages)] = pages
        self._changed = True

    def upload(self) -> None:
        """Bring changes of `table` to the device; on the CPU both are the same memory."""
        if self._changed and self._storage.device.type != "cpu":
            self.page_table.copy_(torch.from_numpy(self.table))
        self._changed = False

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page's keys and values in all layers."""
        self._storage[:, :, target] = self._storage[:, :, source]
