import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout.engine.pages import PageAllocator, PagedCache


def test_every_page_but_the_first_can_be_taken_once():
    allocator = PageAllocator(6)
    pages = allocator.take(5)
    assert sorted(pages) == [1, 2, 3, 4, 5]
    assert allocator.free == 0
    with pytest.raises(AssertionError, match="1 pages wanted, 0 free"):
        allocator.take(1)


def test_shared_pages_return_with_their_last_holder():
    allocator = PageAllocator(4)
    pages = allocator.take(2)
    allocator.share(pages)
    allocator.release(pages)
    assert allocator.free == 1
    allocator.release(pages)
    assert allocator.free == 3
    with pytest.raises(AssertionError):
        allocator.release(pages)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "share", "release"]), st.integers(0, 5)), max_size=60))
def test_references_match_a_model(actions):
    allocator, holders = PageAllocator(12), []
    for action, n in actions:
        if action == "take" and n <= allocator.free:
            holders.append(allocator.take(n))
        elif action == "share" and holders:
            pages = holders[n % len(holders)]
            allocator.share(pages)
            holders.append(pages)
        elif action == "release" and holders:
            allocator.release(holders.pop(n % len(holders)))
        counts = np.bincount(np.concatenate([np.zeros(0, np.int32), *holders]).astype(int), minlength=12)
        assert (allocator.references == counts).all()
        assert allocator.free == 11 - np.count_nonzero(counts)
        assert counts[0] == 0


def test_page_table_grows_and_keeps_its_content():
    cache = PagedCache(torch.zeros(2, 3, 5, 4, 1, 8))
    cache.reserve(4, 1)
    cache.assign(2, 0, np.array([3, 1], np.int32))
    cache.assign(2, 2, np.array([4], np.int32))
    cache.reserve(9, 2)
    cache.upload()
    assert cache.page_table.dtype == torch.int32
    assert cache.page_table.shape[0] == 9
    assert cache.page_table[2, :3].tolist() == [3, 1, 4]
    assert (cache.page_table.numpy() == cache.table).all()


def test_copied_page_is_independent_in_every_layer():
    cache = PagedCache(torch.randn(2, 3, 5, 4, 1, 8))
    cache.copy_page(2, 4)
    before = [k[4].clone() for k in cache.k]
    for k, v in zip(cache.k, cache.v, strict=True):
        assert torch.equal(k[2], k[4]) and torch.equal(v[2], v[4])
        k[2] = 0
    assert all(torch.equal(k[4], old) for k, old in zip(cache.k, before, strict=True))
