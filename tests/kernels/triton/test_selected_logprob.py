"""selected_logprob's Triton kernels: values in the interpreter in both modes of backward, and compilation."""

import math
from importlib import import_module

import pytest
import torch

from sprout.kernels import selected_logprob, use_backend
from sprout.kernels.launch import Blocks

kernels = import_module("sprout.kernels.selected_logprob.triton")
backward = import_module("sprout.kernels.selected_logprob.triton_backward")


@pytest.fixture(params=["recompute", "workspace"])
def mode(request, interpreter, monkeypatch):
    """Both modes of backward, the second with several small workspaces."""
    widest = 10**6 if request.param == "recompute" else 0
    monkeypatch.setattr(backward, "WIDEST_RECOMPUTE", {2: widest, 4: widest})
    monkeypatch.setattr(backward, "WORKSPACE_BYTES", 0)
    monkeypatch.setattr(backward, "NARROWEST_WORKSPACE", 40)
    with use_backend(selected_logprob="triton"):
        yield request.param


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(limit, count, seed=0):
    return torch.randint(0, limit, (count,), generator=torch.Generator().manual_seed(seed))


def operands(N, V, H, dtype=torch.float32):
    return [random(N, H, seed=1, dtype=dtype), random(V, H, seed=2, dtype=dtype)]


def both(row, target, temperature=1.0):
    return lambda hidden, weight: selected_logprob(
        hidden, weight, row, target, temperature, with_entropy=True
    )


@pytest.mark.parametrize(("M", "V", "H"), [(1, 1, 1), (15, 31, 15), (16, 32, 16), (17, 33, 17), (33, 65, 5)])
def test_sizes_around_the_blocks(assert_accurate, mode, M, V, H):
    row, target = integers(11, M, 3), integers(V, M, 4)
    assert_accurate("selected_logprob", "triton", both(row, target), operands(11, V, H))


@pytest.mark.parametrize("temperature", [0.4, "per token"])
def test_float16_and_temperatures(assert_accurate, mode, temperature):
    temperature = 0.5 + random(40, seed=5).abs() if temperature == "per token" else temperature
    row, target = integers(30, 40, 3), integers(70, 40, 4)
    inputs = operands(30, 70, 16, torch.float16)
    assert_accurate("selected_logprob", "triton", both(row, target, temperature), inputs)


@pytest.mark.parametrize("mode", ["workspace"], indirect=True)
def test_float16_gradients_of_many_tokens(assert_accurate, mode):
    row, target = torch.arange(150), integers(20, 150)
    assert_accurate("selected_logprob", "triton", both(row, target), operands(150, 20, 16, torch.float16))


def test_small_float16_gradients_do_not_underflow(mode):
    """Upstream weights of 1 / tokens: p / tokens is below what float16 can hold."""
    hidden, weight = (x.requires_grad_() for x in operands(20, 50, 8, torch.float16))
    logprob, _ = selected_logprob(hidden, weight, torch.arange(20), integers(50, 20))
    gradients = torch.autograd.grad((logprob * 2.0**-12).sum(), (hidden, weight), retain_graph=True)
    larger = torch.autograd.grad(logprob.sum(), (hidden, weight))
    for small, large in zip(gradients, larger, strict=True):
        torch.testing.assert_close(small.float() * 2.0**12, large.float(), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("mode", "V"),
    [("recompute", 129_920), ("workspace", 151_671), ("recompute", 152_064)],
    indirect=["mode"],
)
def test_peaked_softmax_of_a_large_vocabulary(assert_accurate, mode, monkeypatch, V):
    tile = {"BLOCK_M": 16, "BLOCK_V": 8192, "BLOCK_H": 16}
    rows = {
        ("forward", 4, "few"): Blocks({**tile, "CHUNK": 65536, "GROUP": 2}),
        ("d_logits", 4): Blocks({**tile, "GROUP": 2}),
        ("d_rows", 4): Blocks(tile),
        ("d_weight", 4): Blocks(tile),
    }
    monkeypatch.setitem(kernels.TABLE, "interpreter", rows)
    monkeypatch.setattr(backward, "NARROWEST_WORKSPACE", 65536)
    target = torch.tensor([0, V // 2, V - 1])
    weight = torch.zeros(V, 4)
    weight[target, torch.arange(3)] = 30.0
    logprob, entropy = selected_logprob(torch.eye(3, 4), weight, torch.arange(3), target, with_entropy=True)
    assert (logprob <= 0).all() and (logprob > -1e-6).all() and (entropy >= -1e-6).all()
    assert_accurate("selected_logprob", "triton", both(torch.arange(3), target), [torch.eye(3, 4), weight])


@pytest.mark.parametrize("mode", ["workspace"], indirect=True)
def test_one_logit_above_a_uniform_floor(assert_accurate, mode):
    hidden, weight = torch.ones(4, 1), torch.full((90, 1), -15.0)
    weight[71] = 3.0
    target = torch.tensor([71, 0, 89, 71])
    assert_accurate("selected_logprob", "triton", both(torch.arange(4), target), [hidden, weight])


@pytest.mark.parametrize("mode", ["workspace"], indirect=True)
@pytest.mark.parametrize("magnitude", [1e-4, 30.0, 1e4])
def test_magnitudes(assert_accurate, mode, magnitude):
    hidden, weight = operands(20, 50, 8)
    row, target = integers(20, 16, 3), integers(50, 16, 4)
    assert_accurate("selected_logprob", "triton", both(row, target), [hidden * magnitude, weight])


@pytest.mark.parametrize("mode", ["workspace"], indirect=True)
def test_correlated_rows(assert_accurate, mode):
    hidden, weight = operands(20, 50, 8)
    hidden = hidden[:1] + 1e-3 * hidden
    assert_accurate("selected_logprob", "triton", both(torch.arange(20), integers(50, 20)), [hidden, weight])


def test_strided_and_broadcast_inputs(assert_accurate, mode):
    pairs = torch.stack([integers(20, 30, 3), integers(50, 30, 4)], dim=1)
    hidden, weight = random(8, 20).T, random(1, 8, seed=2).expand(50, 8)
    assert_accurate("selected_logprob", "triton", both(pairs[:, 0], pairs[:, 1]), [hidden, weight])
    sliced = both(pairs[::2, 0], pairs[::2, 1], torch.linspace(0.5, 2, 30)[::2])
    assert_accurate("selected_logprob", "triton", sliced, [random(40, 16)[::2, ::2], random(50, 8)])


def test_offsets_beyond_int32(interpreter, sparse):
    """Two rows, or two columns, more than 2^31 elements apart."""

    def spread(values):
        far = sparse(2, 4, row_stride=2**31 + 5)
        far.copy_(values)
        return far

    hidden, head = random(2, 4), random(2, 4, seed=1)
    row = target = torch.arange(2)
    with use_backend(selected_logprob="triton"):
        near, _ = selected_logprob(hidden, head, row, target)
        rows_apart, _ = selected_logprob(spread(hidden), spread(head), row, target)
        columns_apart, _ = selected_logprob(hidden[:, :2], spread(head).T, row, target)
    assert torch.equal(rows_apart, near)
    expected = torch.log_softmax(hidden[:, :2] @ head, dim=1).diagonal()
    torch.testing.assert_close(columns_apart, expected)


def test_upstream_is_per_token_and_its_zeros_keep_garbage_out(mode):
    hidden, weight = operands(6, 50, 4)
    clean = hidden.clone()
    hidden[2], hidden[4] = math.nan, math.inf
    mask = torch.tensor([True, True, False, True, False, True])
    upstream = torch.where(mask, random(6, seed=3), 0.0)

    def gradients(hidden):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        logprob, entropy = selected_logprob(*leaves, torch.arange(6), torch.arange(6), with_entropy=True)
        loss = torch.where(mask, logprob * upstream, 0).sum() + torch.where(mask, entropy, 0).sum()
        return torch.autograd.grad(loss, leaves)

    for garbage, expected in zip(gradients(hidden), gradients(clean), strict=True):
        assert torch.equal(garbage, expected)
    assert (gradients(hidden)[0][~mask] == 0).all()


def test_all_upstream_gradients_zero_is_exactly_zero(mode):
    hidden, weight = (x.requires_grad_() for x in operands(6, 20, 4, torch.float16))
    logprob, _ = selected_logprob(hidden, weight, torch.arange(6), torch.arange(6))
    (0 * logprob).sum().backward()
    assert torch.equal(hidden.grad, torch.zeros_like(hidden))
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_no_tokens_give_zero_gradients(mode):
    hidden, weight = (x.requires_grad_() for x in operands(6, 20, 4))
    none = torch.empty(0, dtype=torch.int64)
    logprob, entropy = selected_logprob(hidden, weight, none, none, with_entropy=True)
    (logprob.sum() + entropy.sum()).backward()
    assert torch.equal(hidden.grad, torch.zeros(6, 4)) and torch.equal(weight.grad, torch.zeros(20, 4))


def test_backward_twice_and_broadcast_upstream(mode):
    inputs = operands(9, 40, 4)
    leaves = [x.clone().requires_grad_() for x in inputs]
    row, target = integers(9, 12), integers(40, 12)
    logprob, _ = selected_logprob(*leaves, row, target, 0.7, with_entropy=True)
    summed = torch.autograd.grad(logprob.sum(), leaves, retain_graph=True)
    dense = torch.autograd.grad(logprob, leaves, torch.ones(12), retain_graph=True)
    for a, b, leaf, x in zip(summed, dense, leaves, inputs, strict=True):
        assert torch.equal(a, b) and torch.equal(leaf, x)


@pytest.mark.parametrize("frozen", [0, 1])
def test_one_gradient_alone(assert_accurate, mode, frozen):
    row, target = integers(9, 12), integers(40, 12)
    assert_accurate("selected_logprob", "triton", both(row, target), operands(9, 40, 4), frozen=(frozen,))


@pytest.mark.parametrize("mode", ["workspace"], indirect=True)
def test_tied_embedding_gets_both_gradients(mode):
    def gradient(backend):
        table = random(30, 8).requires_grad_()
        ids = integers(30, 12)
        with use_backend(selected_logprob=backend):
            logprob, _ = selected_logprob(table[ids].tanh(), table, torch.arange(12), ids.roll(-1))
        return torch.autograd.grad(logprob.sum(), table)[0]

    torch.testing.assert_close(gradient("triton"), gradient("reference"), rtol=0, atol=1e-5)


def test_scores_hardly_depend_on_the_batch(interpreter):
    """On a GPU not at all within a shape class; in the interpreter BLAS treats rows differently."""
    hidden, weight = operands(40, 70, 8)
    target = integers(70, 40)
    with use_backend(selected_logprob="triton"):
        together, _ = selected_logprob(hidden, weight, torch.arange(40), target)
        for m in (0, 39):
            alone, _ = selected_logprob(hidden[m : m + 1], weight, torch.tensor([0]), target[m : m + 1])
            torch.testing.assert_close(alone[0], together[m], rtol=0, atol=2e-6)


def test_float64_is_for_other_backends(interpreter):
    hidden, weight = (x.double() for x in operands(2, 5, 4))
    with (
        use_backend(selected_logprob="triton"),
        pytest.raises(RuntimeError, match=r"cannot run on cpu torch\.float64"),
    ):
        selected_logprob(hidden, weight, torch.arange(2), torch.arange(2))


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def forward_and_backward(M, V, H, dtype, with_entropy=True):
    hidden, weight = meta(M, H, dtype=dtype).requires_grad_(), meta(V, H, dtype=dtype).requires_grad_()
    ids = meta(M, dtype=torch.int64)

    def run():
        outputs = kernels.selected_logprob(hidden, weight, ids, ids, 1.0, with_entropy)
        sum(x.sum() for x in outputs if x is not None).backward()

    return run


def names(launches):
    return {kernel.name for kernel in launches}


RECOMPUTE = {"forward_kernel", "combine_kernel", "d_rows_kernel", "d_weight_kernel", "sum_rows_kernel"}
WORKSPACE = {"forward_kernel", "combine_kernel", "d_logits_kernel", "sum_rows_kernel"}


@pytest.mark.parametrize(
    ("dtype", "H", "expected"),
    [
        (torch.bfloat16, 64, RECOMPUTE),
        (torch.bfloat16, 4096, WORKSPACE),
        (torch.float16, 896, WORKSPACE),
        (torch.float32, 64, RECOMPUTE),
        (torch.float32, 896, WORKSPACE),
    ],
    ids=lambda value: "" if isinstance(value, set) else str(value),  # a set has no order to name a test by
)
def test_compiles(compiled, dtype, H, expected):
    assert names(compiled(forward_and_backward(8192, 151_936, H, dtype))) == expected


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("H", [64, 100, 256, 896, 4096])
@pytest.mark.parametrize("V", [151_936, 151_671])
@pytest.mark.parametrize("M", [16, 8192])
def test_compiles_with_every_row_of_the_table(compiled, dtype, H, V, M):
    compiled(forward_and_backward(M, V, H, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("H", [64, 100, 256, 880, 896, 4096])
def test_compiles_without_entropy(compiled, dtype, H):
    # Where the steps along H are few, their loop is unrolled and addresses spill. They are read again once a
    # tile of logits, not in the loop; a smaller tile would cost more.
    unrolled = dtype == torch.bfloat16 and H == 896
    launches = compiled(
        forward_and_backward(8192, 151_936, H, dtype, with_entropy=False),
        may_spill=("forward_kernel",) if unrolled else (),
    )
    assert all(kernel.spilled <= 64 for kernel in launches)
