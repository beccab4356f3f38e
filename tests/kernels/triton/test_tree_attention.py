"""The Triton kernels of tree attention: values in the interpreter with tiny blocks, and compilation."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sprout.kernels import Intervals, tree_attention, use_backend
from sprout.kernels.launch import Blocks
from sprout.kernels.tree_attention import triton as backend
from sprout.kernels.tree_attention.triton_tiles import Tiles

HALF, FLOAT = [torch.bfloat16, torch.float16], torch.float32


@pytest.fixture
def tiny_blocks(interpreter, monkeypatch):
    """Blocks of 16 rows, scanned 4 at a time, so that 80 rows already cross every edge."""
    tiny = Blocks({"BLOCK_Q": 16, "BLOCK_K": 16, "SCAN": 4}, 4, 1)
    entries = dict.fromkeys(backend.TABLE["interpreter"], tiny)
    monkeypatch.setattr(backend, "TABLE", {**backend.TABLE, "interpreter": entries})


def random(*shape, seed=0, dtype=FLOAT):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def inputs(R, S, Hq, Hkv, D, dtype=FLOAT):
    return [random(*s, seed=i, dtype=dtype) for i, s in enumerate([(R, Hq, D), (S, Hkv, D), (S, Hkv, D)])]


def forest(rows, branching, seed):
    """DFS order: a row goes on below its predecessor, or with probability `branching` below an ancestor."""
    generator, path = np.random.default_rng(seed), []
    exits = np.full(rows, rows, dtype=np.int32)
    for row in range(rows):
        if generator.random() < branching:
            keep = generator.integers(0, len(path) + 1)
            exits[path[keep:]] = row
            path = path[:keep]
        path.append(row)
    enter = torch.arange(rows, dtype=torch.int32)
    return Intervals(enter, enter, torch.from_numpy(exits))


def packed(*lengths):
    """Independent causal sequences one after another."""
    exits = torch.repeat_interleave(torch.tensor(lengths).cumsum(0), torch.tensor(lengths)).int()
    enter = torch.arange(len(exits), dtype=torch.int32)
    return Intervals(enter, enter, exits)


def check(assert_accurate, intervals, heads=(2, 1), D=16, dtype=FLOAT):
    sizes = len(intervals.query_enter), len(intervals.key_enter)
    attend = lambda q, k, v: tree_attention(q, k, v, intervals)  # noqa: E731
    assert_accurate("tree_attention", "triton", attend, inputs(*sizes, *heads, D, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 70), branching=st.floats(0, 0.6), seed=st.integers(0, 1000))
def test_random_forests(assert_accurate, tiny_blocks, dtype, rows, branching, seed):
    check(assert_accurate, forest(rows, branching, seed), (1, 1), dtype=dtype)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 64, 65, 81])
def test_causal_around_every_block_edge(assert_accurate, tiny_blocks, rows):
    check(assert_accurate, Intervals.causal(rows), (1, 1))


def test_packed_sequences(assert_accurate, tiny_blocks):
    check(assert_accurate, packed(1, 15, 16, 17, 1, 1, 40, 3))


@pytest.mark.parametrize("heads", [(1, 1), (5, 1), (6, 3), (3, 3)], ids=str)
def test_heads(assert_accurate, tiny_blocks, heads):
    check(assert_accurate, forest(33, 0.1, 0), heads, dtype=torch.float16)


@pytest.mark.parametrize("D", [1, 7, 80, 96, 256])
def test_head_sizes(assert_accurate, tiny_blocks, D):
    check(assert_accurate, forest(20, 0.2, 1), D=D, dtype=torch.float16)


def test_queries_in_any_order_and_scored_rows(assert_accurate, tiny_blocks):
    full = forest(90, 0.06, 4)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    check(assert_accurate, Intervals(full.query_enter[order[:50]], full.key_enter, full.key_exit), (1, 1))
    # As the engine calls it: trained keys first, then scored-only ones; queries are the scored-only rows.
    rows = torch.cat([torch.arange(0, 90, 2), torch.arange(1, 90, 2)])
    scored = Intervals(full.query_enter[1::2], full.key_enter[rows], full.key_exit[rows])
    check(assert_accurate, scored, (1, 1))


def test_keys_that_nobody_sees_and_queries_that_see_nothing(assert_accurate, tiny_blocks):
    query = torch.full((40,), 500, dtype=torch.int32)
    query[20] = 3
    keys = torch.arange(40, dtype=torch.int32)
    intervals = Intervals(query, keys, keys + 1)
    check(assert_accurate, intervals)
    q, k, v = (x.requires_grad_() for x in inputs(40, 40, 2, 1, 8))
    with use_backend(tree_attention="triton"):
        out, lse = tree_attention(q, k, v, intervals)
    out.sum().backward()
    assert not out[:20].any() and lse[:20].isneginf().all() and not q.grad[:20].any()
    assert all(x.grad.isfinite().all() for x in (q, k, v)) and not k.grad[[0, 39]].any()


def test_more_partial_runs_than_one_scan(assert_accurate, tiny_blocks):
    """Full and partial blocks alternate: every other key block holds a key that only some queries see."""
    exits = torch.full((160,), 160, dtype=torch.int32)
    exits[8::32] = 150
    enter = torch.arange(160, dtype=torch.int32)
    check(assert_accurate, Intervals(enter[140:], enter, exits), (1, 1))


def test_block_kinds(interpreter):
    """Every visible pair lies in the spans, and no block is called full that is not."""
    for seed in range(5):
        intervals = forest(150, 0.05, seed)
        tiles, seen = Tiles.of(intervals, 16, 32), intervals.visible()
        assert tiles is Tiles.of(intervals, 16, 32)
        for i in range(10):
            low, high = tiles.queries[i].tolist()
            for j in range(5):
                pairs = seen[16 * i : 16 * i + 16, 32 * j : 32 * j + 32]
                first, last, core_first, core_last = tiles.keys[j].tolist()
                met = first <= high and low <= last
                assert met or not pairs.any()
                assert pairs.all() or not (core_first <= low and high <= core_last)
                if met:
                    assert tiles.query_span[i, 0] <= j < tiles.query_span[i, 1]
                    assert tiles.key_span[j, 0] <= i < tiles.key_span[j, 1]


def test_strided_and_broadcast(assert_accurate, tiny_blocks):
    def attend(projection):
        return tree_attention(*projection.view(20, 8, 16).split((4, 2, 2), dim=1), intervals)

    intervals = forest(20, 0.1, 5)
    assert_accurate("tree_attention", "triton", attend, [random(20, 128)])
    assert_accurate("tree_attention", "triton", attend, [random(1, 128).expand(20, 128).mT.mT])
    wide = random(20, 2, 32)[..., ::2]
    strided = lambda q, k, v: tree_attention(q, k, v, intervals)  # noqa: E731
    assert_accurate("tree_attention", "triton", strided, [wide, wide[:, :1], wide[:, 1:].flip(0)])


def test_broadcast_upstream_and_two_backwards(tiny_blocks):
    intervals = forest(30, 0.1, 6)
    leaves = [x.requires_grad_() for x in inputs(30, 30, 4, 2, 8)]
    with use_backend(tree_attention="triton"):
        total = tree_attention(*leaves, intervals)[0].sum()
    total.backward(retain_graph=True)
    first = [x.grad.clone() for x in leaves]
    total.backward()
    assert all(torch.equal(x.grad, 2 * y) for x, y in zip(leaves, first, strict=True))
    with use_backend(tree_attention="reference"):
        wanted = torch.autograd.grad(tree_attention(*leaves, intervals)[0].sum(), leaves)
    torch.testing.assert_close(first, list(wanted), rtol=1e-4, atol=1e-5)


def test_offsets_beyond_int32(tiny_blocks, sparse):
    """Rows 2^30 elements apart."""
    near = random(3, 32)
    results = []
    for x in (near, sparse(3, 32, 2**30).copy_(near)):
        q, k, v = (x.detach().unflatten(1, (2, 16)).requires_grad_() for _ in range(3))
        with use_backend(tree_attention="triton"):
            out, lse = tree_attention(q, k, v, Intervals.causal(3))
            results.append([out, lse, *torch.autograd.grad(out, (q, k, v), x.unflatten(1, (2, 16)))])
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_user_errors(interpreter):
    q, k, v = inputs(4, 4, 2, 1, 8)
    with use_backend(tree_attention="triton"), pytest.raises(ValueError, match="one dtype"):
        tree_attention(q, k.half(), v.half(), Intervals.causal(4))
    q, k, v = inputs(4, 4, 2, 1, 264)
    with (
        use_backend(tree_attention="triton"),
        pytest.raises(ValueError, match="head sizes 1 to 256, not 264"),
    ):
        tree_attention(q, k, v, Intervals.causal(4))


def forward_and_backward(D, dtype, rows=8192, heads=(8, 2)):
    def run():
        vector = torch.empty(rows, dtype=torch.int32, device="meta")
        q, k, v = (
            torch.empty(rows, h, D, dtype=dtype, device="meta", requires_grad=True)
            for h in (heads[0], heads[1], heads[1])
        )
        out, _ = backend.tree_attention(q, k, v, Intervals(vector, vector, vector), 0.1)
        out.backward(torch.empty_like(out))

    return run


DEFAULT = [
    (16, torch.bfloat16),
    (64, torch.float16),
    (128, torch.bfloat16),
    (256, torch.bfloat16),
    (64, FLOAT),
]
OTHERS = [
    (D, t) for D in (16, 32, 64, 80, 96, 128, 192, 256) for t in (*HALF, FLOAT) if (D, t) not in DEFAULT
]


@pytest.mark.parametrize(
    ("D", "dtype"), [*DEFAULT, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)], ids=str
)
def test_compiles(compiled, D, dtype):
    """Every kernel, and with all head sizes and dtypes every entry of the table."""
    may_spill = ("forward_kernel", "grad_query_kernel", "grad_key_kernel") if dtype == FLOAT else ()
    kernels = compiled(forward_and_backward(D, dtype), may_spill)
    names = {kernel.name for kernel in kernels}
    assert names == {"_spans_kernel", "forward_kernel", "grad_query_kernel", "grad_key_kernel"}
