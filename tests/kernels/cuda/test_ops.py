"""Every op on a GPU: each dtype, sizes around the block sizes, many rows, offsets beyond 2**31."""

import pytest
import torch

from sprout.bench.ops.trees import canonical, causal, group
from sprout.bench.workload import PairShape
from sprout.kernels import (
    Intervals,
    PolicyLossCoefficients,
    adamw_,
    add_rms_norm,
    decode_attention,
    policy_loss,
    rms_norm,
    rotary,
    sample,
    selected_logprob,
    swiglu,
    tree_attention,
    use_backend,
)
from sprout.kernels.dispatch import unavailable

EPS = 1e-6
MANY_ROWS = 70_000  # more than a grid's second dimension holds
FOREST = PairShape(trajectories=3, prompt=40, turns=3, observation=17, action=9, skill=11)


def norm(x, weight):
    return rms_norm(x, weight, EPS)


def add_norm(x, residual, weight):
    return add_rms_norm(x, residual, weight, EPS)


def tables(random, rows, D):
    angle = random(rows, D // 2, seed=5)
    return [angle.cos(), angle.sin()]


@pytest.mark.parametrize("shape", [(1, 1), (7, 64), (33, 257), (129, 896), (5, 4096), (0, 8)], ids=str)
def test_norms(check, random, dtype, shape):
    x, residual = random(*shape, dtype=dtype), random(*shape, seed=1, dtype=dtype)
    weight = random(shape[-1], seed=2, dtype=dtype)
    check("rms_norm", norm, [x, weight])
    check("add_rms_norm", add_norm, [x, residual, weight])


@pytest.mark.parametrize("D", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("heads", [(1, 1), (6, 2), (5, 5)], ids=str)
def test_rotary(check, random, dtype, heads, D):
    q, k = (random(37, h, D, seed=h, dtype=dtype) for h in heads)
    check("rotary", rotary, [q, k, *tables(random, 37, D)], frozen=(2, 3))


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (130, 1000), (3, 4864)], ids=str)
def test_swiglu(check, random, dtype, shape):
    check("swiglu", swiglu, [random(*shape, dtype=dtype), random(*shape, seed=1, dtype=dtype)])


@pytest.mark.parametrize("D", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(4, 2), (5, 1)], ids=str)
@pytest.mark.parametrize("kind", ["causal", "group", "canonical"])
def test_tree_attention(check, random, device, dtype, kind, heads, D):
    trees = {
        "causal": lambda: causal(257, device),
        "group": lambda: group(70, 5, 33, device),
        "canonical": lambda: canonical(FOREST, device),
    }
    tree = trees[kind]()
    q = random(tree.rows, heads[0], D, dtype=dtype)
    k, v = (random(tree.rows, heads[1], D, seed=s, dtype=dtype) for s in (1, 2))
    check("tree_attention", lambda q, k, v: tree_attention(q, k, v, tree.intervals)[0], [q, k, v])


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 63, 64, 65, 127, 128, 129])
def test_tree_attention_around_block_sizes(check, random, device, rows):
    intervals = Intervals.causal(rows, device)
    inputs = [random(rows, h, 64, seed=h, dtype=torch.bfloat16) for h in (4, 2)]
    inputs.append(random(rows, 2, 64, seed=9, dtype=torch.bfloat16))
    check("tree_attention", lambda q, k, v: tree_attention(q, k, v, intervals)[0], inputs)


def test_query_without_a_visible_key(check, random, device):
    enter = torch.arange(8, dtype=torch.int32, device=device)
    intervals = Intervals(enter, enter[4:], enter[4:] + 1)
    inputs = [random(8, 2, 32), random(4, 2, 32, seed=1), random(4, 2, 32, seed=2)]
    check("tree_attention", lambda q, k, v: tree_attention(q, k, v, intervals)[0], inputs)


@pytest.mark.parametrize("V", [1, 127, 129, 5003])
@pytest.mark.parametrize("temperature", [1.0, "per token"])
def test_selected_logprob(check, random, integers, dtype, V, temperature):
    hidden, weight = random(41, 96, dtype=dtype), random(V, 96, seed=1, dtype=dtype)
    row, target = integers(41, 130), integers(V, 130, seed=1)
    heat = random(130, seed=3).abs() + 0.5 if temperature == "per token" else temperature
    check(
        "selected_logprob",
        lambda h, w: selected_logprob(h, w, row, target, heat, with_entropy=True),
        [hidden, weight],
    )


def test_selected_logprob_peaked(check, random, integers, device, dtype):
    hidden, target = random(64, 128, dtype=dtype), integers(3001, 64)
    weight = random(3001, 128, seed=1, dtype=dtype) * 0.05
    weight[target] = hidden  # the softmax peaks at the target, so phantom columns would show
    row = torch.arange(64, device=device)
    check("selected_logprob", lambda h, w: selected_logprob(h, w, row, target)[0], [hidden, weight])


def test_policy_loss(check, random):
    old, skill, advantage = (random(1001, seed=s) for s in (1, 2, 3))
    weight = random(1001, seed=4).abs() * (random(1001, seed=5) > -1)
    old[weight == 0] = torch.nan
    columns = {"old_logprob": old, "skill_logprob": skill, "advantage": advantage, "weight": weight}
    coefficients = PolicyLossCoefficients(opd=0.5)

    def loss(x):
        typed = {name: value.to(x.dtype) for name, value in columns.items()}
        return policy_loss(x, **typed, coefficients=coefficients)[0]

    check("policy_loss", loss, [old.nan_to_num() + 0.1 * random(1001, seed=6)])


@pytest.mark.parametrize("D", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("heads", [(4, 2), (7, 7), (5, 1)], ids=str)
def test_decode_attention(check, random, device, dtype, heads, D):
    lengths, page, pages = [1, 15, 16, 17, 300, 0, 511, 513], 16, 33
    order = torch.randperm(len(lengths) * pages, generator=torch.Generator().manual_seed(0))
    table = order.view(len(lengths), pages).int().to(device)
    sequence = torch.arange(len(lengths), dtype=torch.int32, device=device)
    length = torch.tensor(lengths, dtype=torch.int32, device=device)
    q = random(len(lengths), heads[0], D, dtype=dtype)
    caches = [random(len(order), page, heads[1], D, seed=s, dtype=dtype) for s in (1, 2)]
    op = lambda q, k, v: decode_attention(q, k, v, table, sequence, length)  # noqa: E731
    check("decode_attention", op, [q, *caches], frozen=(0, 1, 2))


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_sample_chooses_as_the_reference_does(random, device, backend, top_p):
    if why := unavailable("sample", backend, device, torch.float32):
        pytest.skip(why)
    logits, counter = 3 * random(50, 1003), torch.arange(50, device=device)
    chosen = {}
    for name in (backend, "reference"):
        with use_backend(sample=name):
            chosen[name] = sample(logits, temperature=0.8, top_p=top_p, key=counter, position=counter)
    token, logprob = chosen[backend]
    assert (token == chosen["reference"][0]).float().mean() > 0.95  # rounding may move a border
    same = token == chosen["reference"][0]
    torch.testing.assert_close(logprob[same], chosen["reference"][1][same], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_adamw(random, device, backend, grad_dtype):
    if why := unavailable("adamw_", backend, device, torch.float32):
        pytest.skip(why)
    shapes = [(33, 65), (7,), (1, 1), (4097,)]
    results = {}
    for name, dtype in ((backend, torch.float32), ("reference", torch.float64)):
        params, mean, square = ([random(*s, seed=i).to(dtype) for s in shapes] for i in (0, 1, 2))
        square = [x.abs() for x in square]
        grads = [random(*s, seed=3).to(grad_dtype) for s in shapes]
        with use_backend(adamw_=name):
            for step in (1, 2):
                settings = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
                adamw_(params, grads, mean, square, step=step, grad_scale=0.5, **settings)
        results[name] = params + mean + square
    for ours, exact in zip(results[backend], results["reference"], strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


def test_many_rows(check, random, integers, device):
    half = torch.bfloat16
    x, y = (random(MANY_ROWS, 16, seed=s, dtype=half) for s in (0, 1))
    weight = random(16, seed=2, dtype=half)
    check("swiglu", swiglu, [x, y])
    q, k = x.view(-1, 2, 8), y.view(-1, 2, 8)
    check("rotary", rotary, [q, k, *tables(random, MANY_ROWS, 8)], frozen=(2, 3))
    check("rms_norm", norm, [x, weight], frozen=(1,))
    row, target = torch.arange(MANY_ROWS, device=device), integers(40, MANY_ROWS)
    head = random(40, 16, seed=3, dtype=half)
    check("selected_logprob", lambda h, w: selected_logprob(h, w, row, target)[0], [x, head], frozen=(1,))


def test_far_rows_of_elementwise_ops(check, far, random):
    half = torch.bfloat16
    x, y = far(3, 64, dtype=half), far(3, 64, seed=1, dtype=half)
    weight = random(64, seed=2, dtype=half)
    check("rms_norm", norm, [x, weight])
    check("swiglu", swiglu, [x, y])
    check("add_rms_norm", add_norm, [x, y, weight])
    q, k = x.unflatten(1, (2, 32)), y.unflatten(1, (2, 32))
    check("rotary", rotary, [q, k, *tables(random, 3, 32)], frozen=(2, 3))


def test_far_rows_of_tree_attention(check, far, device):
    intervals = Intervals.causal(3, device)
    inputs = [far(3, 2, 32, seed=s, dtype=torch.bfloat16) for s in range(3)]
    check("tree_attention", lambda q, k, v: tree_attention(q, k, v, intervals)[0], inputs)


def test_far_rows_of_selected_logprob(check, far, device):
    hidden, weight = (far(3, 64, seed=s, dtype=torch.bfloat16) for s in (0, 1))
    row = torch.tensor([0, 1, 2, 2], device=device)
    target = torch.tensor([2, 0, 1, 2], device=device)
    check("selected_logprob", lambda h, w: selected_logprob(h, w, row, target)[0], [hidden, weight])
