import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from sprout.kernels import Intervals, tree_attention, use_backend


# Triton's interpreter needs smaller shapes: see triton/test_tree_attention.py.
@pytest.fixture(params=["native", "torch"])
def cpu_backend(request):
    return ready(request.param)


@pytest.fixture(
    params=[
        ("native", torch.float32),
        ("native", torch.bfloat16),
        ("torch", torch.float32),
        ("torch", torch.bfloat16),
        ("torch", torch.float16),
    ],
    ids=lambda path: f"{path[0]}-{path[1]}",
)
def cpu_path(request):
    backend, dtype = request.param
    return ready(backend), dtype


def ready(backend):
    if backend == "native":
        pytest.importorskip("sprout.kernels._native", reason="not built", exc_type=ImportError)
    return backend


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def inputs(R, S, Hq, Hkv, D, dtype=torch.float32):
    return [random(*s, seed=i, dtype=dtype) for i, s in enumerate([(R, Hq, D), (S, Hkv, D), (S, Hkv, D)])]


def tree(parents):
    """Intervals of a forest whose rows are in DFS order; parents[i] < i, or -1 for a root."""
    end = np.arange(1, len(parents) + 1)
    for i in reversed(range(len(parents))):
        if parents[i] >= 0:
            end[parents[i]] = max(end[parents[i]], end[i])
    enter = torch.arange(len(parents), dtype=torch.int32)
    return Intervals(enter, enter, torch.from_numpy(end.astype(np.int32)))


def random_parents(rows, branching, seed):
    """DFS order: a row goes on below its predecessor, or with probability `branching` below an ancestor."""
    generator, path, parents = np.random.default_rng(seed), [], []
    for row in range(rows):
        if generator.random() < branching:
            path = path[: generator.integers(0, len(path) + 1)]
        parents.append(path[-1] if path else -1)
        path.append(row)
    return parents


def ancestry(parents, row):
    path = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (5, 1), (6, 6), (9, 3), (16, 1)], ids=str)
def test_heads(assert_accurate, cpu_path, heads):
    backend, dtype = cpu_path
    intervals = tree(random_parents(60, 0.1, 0))
    attend = lambda q, k, v: tree_attention(q, k, v, intervals)  # noqa: E731
    assert_accurate("tree_attention", backend, attend, inputs(60, 60, *heads, 16, dtype))


@pytest.mark.parametrize("D", [1, 16, 48, 64, 80, 96, 128, 256])
def test_head_sizes(assert_accurate, cpu_path, D):
    backend, dtype = cpu_path
    intervals = tree(random_parents(40, 0.2, 1))
    attend = lambda q, k, v: tree_attention(q, k, v, intervals)  # noqa: E731
    assert_accurate("tree_attention", backend, attend, inputs(40, 40, 4, 2, D, dtype))


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 71, 72, 73, 127, 128, 129, 257, 400])
@pytest.mark.parametrize("branching", [0.0, 0.02, 0.5])
def test_row_counts(assert_accurate, cpu_backend, rows, branching):
    intervals = tree(random_parents(rows, branching, rows))
    attend = lambda q, k, v: tree_attention(q, k, v, intervals, 0.3)  # noqa: E731
    assert_accurate("tree_attention", cpu_backend, attend, inputs(rows, rows, 2, 1, 16))


@pytest.mark.parametrize("peak", [30.0, 1e4])
def test_peaked_softmax(assert_accurate, peak, cpu_backend):
    def attend(q, k, v):
        return tree_attention(q, k * peak, v, intervals)

    intervals = tree(random_parents(150, 0.05, 2))
    q, k, v = inputs(150, 150, 2, 2, 16)
    k = k / k.norm(dim=-1, keepdim=True) * 0.1
    assert_accurate("tree_attention", cpu_backend, attend, [q, k, v])


def test_causal_equals_torch(cpu_backend):
    q, k, v = inputs(200, 200, 4, 2, 32)
    with use_backend(tree_attention=cpu_backend):
        out, lse = tree_attention(q, k, v, Intervals.causal(200))
    heads = [x.transpose(0, 1)[None] for x in (q, k, v)]
    wanted = scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
    torch.testing.assert_close(out, wanted)
    assert lse.shape == (200, 4) and lse.dtype == torch.float32 and not lse.requires_grad


@pytest.mark.parametrize("name", ["torch", "reference"])
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 60), branching=st.floats(0, 0.6), seed=st.integers(0, 1000))
def test_forest_equals_unshared_sequences(name, rows, branching, seed):
    """Outputs and gradients against causal attention over the ancestors of each row alone."""
    parents = random_parents(rows, branching, seed)
    q, k, v = [x.double().requires_grad_() for x in inputs(rows, rows, 4, 2, 4)]
    upstream = random(rows, 4, 4, seed=9).double()
    with use_backend(tree_attention=name):
        out, _ = tree_attention(q, k, v, tree(parents))
    gradients = torch.autograd.grad(out, (q, k, v), upstream)
    alone = []
    for row in range(rows):
        path = ancestry(parents, row)
        with use_backend(tree_attention="reference"):
            sequence, _ = tree_attention(q[path], k[path], v[path], Intervals.causal(len(path)))
        alone.append(sequence[-1])
    torch.testing.assert_close(out, torch.stack(alone), rtol=0, atol=1e-12)
    wanted = torch.autograd.grad(torch.stack(alone), (q, k, v), upstream)
    torch.testing.assert_close(gradients, wanted, rtol=0, atol=1e-11)


def test_exact_gradients():
    intervals = tree([-1, 0, 1, 1, 3, 0, -1, 6])
    leaves = [x.double().requires_grad_() for x in inputs(8, 8, 4, 2, 3)]
    with use_backend(tree_attention="torch"):
        assert torch.autograd.gradcheck(lambda q, k, v: tree_attention(q, k, v, intervals)[0], leaves)


def test_two_thousand_branches_of_one_row(assert_accurate, cpu_backend):
    intervals = tree([-1] + [0] * 2000)
    attend = lambda q, k, v: tree_attention(q, k, v, intervals)  # noqa: E731
    assert_accurate("tree_attention", cpu_backend, attend, inputs(2001, 2001, 1, 1, 8))
    assert sum(len(block.keys) for block in intervals.plan.blocks) < 2100


@pytest.mark.parametrize("sizes", [(0, 0), (0, 4), (4, 0)], ids=str)
def test_empty(assert_accurate, sizes, cpu_backend):
    R, S = sizes
    keys = torch.arange(S, dtype=torch.int32)
    intervals = Intervals(torch.arange(R, dtype=torch.int32), keys, keys + 9)
    attend = lambda q, k, v: tree_attention(q, k, v, intervals)  # noqa: E731
    assert_accurate("tree_attention", cpu_backend, attend, inputs(R, S, 4, 2, 8))
    with use_backend(tree_attention=cpu_backend):
        out, lse = attend(*inputs(R, S, 4, 2, 8))
    assert torch.equal(out, torch.zeros(R, 4, 8)) and torch.equal(lse, torch.full((R, 4), -math.inf))


def test_query_that_sees_nothing(assert_accurate, cpu_backend):
    intervals = Intervals(
        *(torch.tensor(x, dtype=torch.int32) for x in ([0, 5, 70, 2], [0, 2, 5], [1, 3, 6]))
    )
    attend = lambda q, k, v: tree_attention(q, k, v, intervals)  # noqa: E731
    assert_accurate("tree_attention", cpu_backend, attend, inputs(4, 3, 2, 1, 8))
    q, k, v = (x.requires_grad_() for x in inputs(4, 3, 2, 1, 8))
    with use_backend(tree_attention=cpu_backend):
        out, lse = attend(q, k, v)
    out.sum().backward()
    assert not out[2].any() and lse[2].isneginf().all() and not q.grad[2].any()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_queries_in_any_order_and_fewer_than_keys(assert_accurate, cpu_backend):
    full = tree(random_parents(300, 0.03, 4))
    chosen = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:170]
    some = Intervals(full.query_enter[chosen], full.key_enter, full.key_exit)
    attend = lambda q, k, v: tree_attention(q, k, v, some)  # noqa: E731
    q, k, v = inputs(300, 300, 4, 2, 16)
    assert_accurate("tree_attention", cpu_backend, attend, [q[chosen], k, v])
    with use_backend(tree_attention=cpu_backend):
        torch.testing.assert_close(attend(q[chosen], k, v)[0], tree_attention(q, k, v, full)[0][chosen])


def test_views_of_a_fused_projection(assert_accurate, cpu_backend):
    def attend(projection):
        return tree_attention(*projection.view(50, 10, 16).split((6, 2, 2), dim=1), intervals)

    intervals = tree(random_parents(50, 0.1, 5))
    assert_accurate("tree_attention", cpu_backend, attend, [random(50, 160)])


def test_broadcast_upstream_and_two_backwards(cpu_backend):
    intervals = tree(random_parents(30, 0.1, 6))
    leaves = [x.requires_grad_() for x in inputs(30, 30, 4, 2, 8)]
    with use_backend(tree_attention=cpu_backend):
        total = tree_attention(*leaves, intervals)[0].sum()
    total.backward(retain_graph=True)
    first = [x.grad.clone() for x in leaves]
    total.backward()
    torch.testing.assert_close([x.grad for x in leaves], [2 * x for x in first])
    with use_backend(tree_attention="reference"):
        wanted = torch.autograd.grad(tree_attention(*leaves, intervals)[0].sum(), leaves)
    torch.testing.assert_close(first, list(wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strided_and_broadcast_inputs(assert_accurate, cpu_backend, dtype):
    intervals = tree(random_parents(40, 0.1, 7))
    attend = lambda q, k, v: tree_attention(q, k, v, intervals)  # noqa: E731
    q = random(4, 24, 40, dtype=dtype).permute(2, 0, 1)
    k = random(80, 2, 48, seed=1, dtype=dtype)[::2, :, ::2]
    v = random(1, 2, 24, seed=2, dtype=dtype).expand(40, 2, 24)
    assert_accurate("tree_attention", cpu_backend, attend, [q, k, v])


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 200),
    branching=st.floats(0, 0.6),
    seed=st.integers(0, 1000),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2), (14, 2)]),
    D=st.sampled_from([1, 8, 24, 64]),
    some=st.booleans(),
)
def test_any_forest_on_the_native_backend(rows, branching, seed, heads, D, some):
    """Outputs and gradients against the float64 reference; queries all in order, or some in any order."""
    pytest.importorskip("sprout.kernels._native", reason="not built", exc_type=ImportError)
    full = tree(random_parents(rows, branching, seed))
    chosen = np.random.default_rng(seed).permutation(rows)[: rows // 2 + 1] if some else np.arange(rows)
    intervals = Intervals(full.query_enter[torch.from_numpy(chosen)], full.key_enter, full.key_exit)
    leaves = [x.requires_grad_() for x in inputs(len(chosen), rows, *heads, D)]
    upstream = random(len(chosen), heads[0], D, seed=9)
    with use_backend(tree_attention="native"):
        out, lse = tree_attention(*leaves, intervals)
    gradients = torch.autograd.grad(out, leaves, upstream)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    with use_backend(tree_attention="reference"):
        wanted, wanted_lse = tree_attention(*exact, intervals)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(gradients, torch.autograd.grad(wanted, exact, upstream.double()), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_thread_count_changes_no_bit(cpu_backend, dtype):
    intervals = tree(random_parents(500, 0.03, 8))
    leaves = [x.requires_grad_() for x in inputs(500, 500, 6, 2, 64, dtype)]
    upstream = random(500, 6, 64, seed=9, dtype=dtype)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with use_backend(tree_attention=cpu_backend):
                out, lse = tree_attention(*leaves, intervals)
            results.append([out, lse, *torch.autograd.grad(out, leaves, upstream)])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))


def test_garbage_in_keys_that_nobody_sees(cpu_backend):
    """Their values meet weight 0 in no sum, and their gradients are 0."""
    intervals = Intervals(
        torch.arange(40, dtype=torch.int32),
        torch.cat([torch.arange(40), torch.full((40,), 1000)]).int(),
        torch.cat([torch.full((40,), 40), torch.full((40,), 1001)]).int(),
    )
    q, k, v = inputs(40, 80, 2, 1, 16)
    k[48:], v[48:] = torch.nan, torch.inf
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with use_backend(tree_attention=cpu_backend):
        out, _ = tree_attention(*leaves, intervals)
    gradients = torch.autograd.grad(out.sum(), leaves)
    assert out.isfinite().all() and all(x.isfinite().all() for x in gradients)
    assert not gradients[1][40:].any() and not gradients[2][40:].any()


def test_plan_covers_every_visible_pair_once():
    for seed in range(20):
        intervals = tree(random_parents(230, 0.04, seed))
        seen = torch.zeros(230, 230, dtype=torch.bool)
        for block in intervals.plan.blocks:
            rows, n = block.stop - block.start, len(block.keys)
            visible = torch.ones(rows, n, dtype=torch.bool)
            visible[:, n - block.bias.shape[-1] :] = block.bias[:, 0] == 0
            assert visible.any(dim=0).all(), "a key that no query of the block sees"
            assert not seen[block.start : block.stop].any(), "blocks overlap"
            seen[block.start : block.stop, block.keys] = visible
        assert torch.equal(seen, intervals.visible())


def test_plan_is_made_once_and_moves():
    intervals = Intervals.causal(300)
    assert intervals.plan is intervals.plan and intervals.to("cpu") is intervals
    assert torch.equal(intervals.visible(), torch.ones(300, 300).tril().bool())


def test_memory_of_the_plan_grows_with_the_rows():
    sizes = [
        sum(b.bias.numel() + len(b.keys) for b in Intervals.causal(rows).plan.blocks) for rows in (2000, 8000)
    ]
    assert sizes[1] < 8 * sizes[0] and sizes[1] < 8000**2 / 20


def test_user_errors():
    q, k, v = inputs(4, 4, 4, 2, 8)
    with pytest.raises(ValueError, match="intervals of 5 queries and 5 keys do not fit"):
        tree_attention(q, k, v, Intervals.causal(5))
    with pytest.raises(ValueError, match="heads of q"):
        tree_attention(q[:, :3], k, v, Intervals.causal(4))
    with pytest.raises(ValueError, match="1-D int32"):
        Intervals(*(torch.zeros(3, dtype=torch.int64),) * 3)
    with pytest.raises(ValueError, match="3 key_enter values for 2 key_exit values"):
        Intervals(*(torch.zeros(n, dtype=torch.int32) for n in (1, 3, 2)))
