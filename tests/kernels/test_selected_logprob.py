import subprocess
import sys
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sprout.kernels import selected_logprob, use_backend

tiled = import_module("sprout.kernels.selected_logprob.tiles")


@pytest.fixture(params=["native", "torch"])
def cpu_backend(request):
    """The backends with tiles; those of Triton have tests of their own in tests/kernels/triton."""
    if request.param == "native":
        pytest.importorskip("sprout.kernels._native", reason="not built", exc_type=ImportError)
    return request.param


@pytest.fixture
def narrow_tiles(monkeypatch):
    """Tiles of 16 columns, so that small vocabularies have many."""
    monkeypatch.setattr(tiled, "TILE_BYTES", 0)
    monkeypatch.setattr(tiled, "NARROWEST_TILE", 16)


@pytest.fixture(params=[False, True], ids=["float32 GEMMs", "bfloat16 gradient GEMMs"])
def bfloat16_machine(request, monkeypatch):
    """CPUs with and without bfloat16 arithmetic; torch gives the same results on either, only not as fast."""
    monkeypatch.setattr(tiled, "multiplies_bfloat16", lambda: request.param)


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


@pytest.mark.parametrize("V", [1, 2, 15, 16, 17, 31, 32, 33, 100])
@pytest.mark.parametrize("M", [1, 2, 37])
def test_sizes(assert_accurate, cpu_backend, narrow_tiles, V, M):
    row, target = integers(11, M, 3), integers(V, M, 4)
    assert_accurate("selected_logprob", cpu_backend, both(row, target), operands(11, V, 8))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.4, "per token"])
def test_dtypes_and_temperatures(assert_accurate, cpu_backend, narrow_tiles, dtype, temperature):
    if cpu_backend == "native" and dtype == torch.float64:
        pytest.skip("float64 runs in torch")
    temperature = 0.5 + random(40, seed=5).abs() if temperature == "per token" else temperature
    row, target = integers(30, 40, 3), integers(70, 40, 4)
    inputs = operands(30, 70, 16, dtype)
    assert_accurate("selected_logprob", cpu_backend, both(row, target, temperature), inputs)


def test_bfloat16_gradients_of_many_tokens(assert_accurate, cpu_backend, bfloat16_machine):
    row, target = torch.arange(2000), integers(48, 2000)
    inputs = operands(2000, 48, 16, torch.bfloat16)
    assert_accurate("selected_logprob", cpu_backend, both(row, target), inputs)


def test_bfloat16_gradients_over_many_tiles(assert_accurate, cpu_backend, bfloat16_machine, narrow_tiles):
    row, target = integers(30, 40, 3), integers(700, 40, 4)
    inputs = operands(30, 700, 16, torch.bfloat16)
    assert_accurate("selected_logprob", cpu_backend, both(row, target, 0.7), inputs)


def test_all_rows_in_order(assert_accurate, cpu_backend):
    assert_accurate(
        "selected_logprob", cpu_backend, both(torch.arange(50), integers(99, 50)), operands(50, 99, 8)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("V", [129_920, 151_671, 152_064])
def test_peaked_softmax_of_a_large_vocabulary(assert_accurate, cpu_backend, V, dtype):
    target = torch.tensor([0, V // 2, V - 1])
    hidden = torch.eye(3, 4, dtype=dtype)
    weight = torch.zeros(V, 4, dtype=dtype)
    weight[target, torch.arange(3)] = 30.0
    logprob, entropy = selected_logprob(hidden, weight, torch.arange(3), target, with_entropy=True)
    assert (logprob <= 0).all() and (logprob > -1e-6).all() and (entropy >= 0).all()
    assert_accurate("selected_logprob", cpu_backend, both(torch.arange(3), target), [hidden, weight])


def test_one_logit_above_a_uniform_floor(assert_accurate, cpu_backend, narrow_tiles):
    hidden, weight = torch.ones(4, 1), torch.full((90, 1), -15.0)
    weight[71] = 3.0
    target = torch.tensor([71, 0, 89, 71])
    assert_accurate("selected_logprob", cpu_backend, both(torch.arange(4), target), [hidden, weight])


@pytest.mark.parametrize("magnitude", [1e-4, 30.0, 1e4])
def test_magnitudes(assert_accurate, cpu_backend, narrow_tiles, magnitude):
    hidden, weight = operands(20, 50, 8)
    row, target = integers(20, 30, 3), integers(50, 30, 4)
    assert_accurate("selected_logprob", cpu_backend, both(row, target), [hidden * magnitude, weight])


def test_correlated_rows(assert_accurate, cpu_backend, narrow_tiles):
    hidden, weight = operands(20, 50, 8)
    hidden = hidden[:1] + 1e-3 * hidden
    row, target = torch.arange(20), integers(50, 20)
    assert_accurate("selected_logprob", cpu_backend, both(row, target), [hidden, weight])


def test_strided_and_broadcast_inputs(assert_accurate, cpu_backend, narrow_tiles):
    pairs = torch.stack([integers(20, 30, 3), integers(50, 30, 4)], dim=1)
    hidden, weight = random(8, 20).T, random(1, 8, seed=2).expand(50, 8)
    assert_accurate("selected_logprob", cpu_backend, both(pairs[:, 0], pairs[:, 1]), [hidden, weight])
    sliced = both(pairs[::2, 0], pairs[::2, 1])
    assert_accurate("selected_logprob", cpu_backend, sliced, [random(40, 16)[::2, ::2], random(50, 8)])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_rows_equal_the_reference_in_float64(data):
    N, V, M = (data.draw(st.integers(1, n)) for n in (8, 40, 20))
    row = torch.tensor(data.draw(st.lists(st.integers(0, N - 1), min_size=M, max_size=M)))
    target = torch.tensor(data.draw(st.lists(st.integers(0, V - 1), min_size=M, max_size=M)))
    width = data.draw(st.integers(1, 48))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiled, "TILE_BYTES", 0)
        patch.setattr(tiled, "NARROWEST_TILE", width)
        results = [gradients(backend, row, target, operands(N, V, 5)) for backend in ("reference", "torch")]
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def gradients(backend, row, target, inputs):
    hidden, weight = (x.double().requires_grad_() for x in inputs)
    with use_backend(selected_logprob=backend):
        logprob, entropy = selected_logprob(hidden, weight, row, target, 0.7, with_entropy=True)
        upstream = random(2, len(row), seed=9, dtype=torch.float64)
        loss = (upstream[0] * logprob + upstream[1] * entropy).sum()
    return [logprob.detach(), entropy.detach(), *torch.autograd.grad(loss, (hidden, weight))]


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_gradcheck(backend):
    hidden, weight = (x.double().requires_grad_() for x in operands(4, 7, 3))
    with use_backend(selected_logprob=backend):
        assert torch.autograd.gradcheck(
            both(torch.tensor([3, 0, 0]), torch.tensor([6, 0, 2]), 0.8), (hidden, weight)
        )


def test_temperature_divides_the_logits_once():
    hidden, weight = operands(6, 9, 4)
    temperature = torch.linspace(0.3, 2.0, 6)
    logprob, _ = selected_logprob(hidden, weight, torch.arange(6), torch.arange(6), temperature)
    by_hand = torch.log_softmax(hidden @ weight.T / temperature[:, None], dim=1).diagonal()
    torch.testing.assert_close(logprob, by_hand)
    for m, t in enumerate(temperature.tolist()):
        alone, _ = selected_logprob(hidden, weight, torch.tensor([m]), torch.tensor([m]), t)
        torch.testing.assert_close(alone[0], logprob[m])


@pytest.mark.parametrize("bad", [-1, 50, 2**40])
@pytest.mark.parametrize("name", ["row", "target"])
def test_out_of_range_is_an_error(name, bad):
    hidden, weight = operands(50, 50, 4)
    index = {"row": torch.tensor([0, 1]), "target": torch.tensor([0, 1])}
    index[name][1] = bad
    with pytest.raises(ValueError, match=rf"{name} must be in \[0, 50\), found"):
        selected_logprob(hidden, weight, index["row"], index["target"])


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), torch.tensor([1.0, 0.0])])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(ValueError, match="temperature must be positive"):
        selected_logprob(*operands(2, 5, 4), torch.arange(2), torch.arange(2), temperature)


def test_ill_shaped_inputs_are_errors():
    hidden, weight = operands(2, 5, 4)
    two = torch.arange(2)
    for arguments, message in (
        ((hidden, weight[:, :3], two, two), "hidden must be"),
        ((hidden, weight.double(), two, two), "share one floating dtype"),
        ((hidden, weight, two, two[:1]), "one length"),
        ((hidden, weight, two, two.int()), "must be int64"),
        ((hidden, weight, two, two, torch.ones(3)), "must be a number or"),
    ):
        with pytest.raises(ValueError, match=message):
            selected_logprob(*arguments)


def test_upstream_gradients_are_per_token():
    hidden, weight = (x.requires_grad_() for x in operands(6, 20, 4))
    row, target = torch.arange(6), integers(20, 6)
    logprob, _ = selected_logprob(hidden, weight, row, target)
    upstream = torch.tensor([0.0, 0.0, 2.0, 0.0, -3.0, 0.0])
    whole = torch.autograd.grad(logprob, (hidden, weight), upstream, retain_graph=True)
    parts = [
        torch.autograd.grad(upstream[i] * logprob[i], (hidden, weight), retain_graph=True) for i in (2, 4)
    ]
    for total, *pieces in zip(whole, *parts, strict=True):
        torch.testing.assert_close(total, sum(pieces))
    assert (whole[0][[0, 1, 3, 5]] == 0).all()


def test_broadcast_upstream():
    hidden, weight = (x.requires_grad_() for x in operands(6, 20, 4))
    logprob, _ = selected_logprob(hidden, weight, torch.arange(6), torch.arange(6))
    (summed,) = torch.autograd.grad(logprob.sum(), hidden, retain_graph=True)
    (dense,) = torch.autograd.grad(logprob, hidden, torch.ones(6), retain_graph=True)
    assert torch.equal(summed, dense)


def test_backward_twice_and_inputs_untouched():
    inputs = operands(9, 40, 4)
    hidden, weight = (x.clone().requires_grad_() for x in inputs)
    row, target = integers(9, 12), integers(40, 12)
    logprob, entropy = selected_logprob(hidden, weight, row, target, 0.7, with_entropy=True)
    loss = (logprob * random(12)).sum() + entropy.sum()
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(loss, (hidden, weight))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(hidden, inputs[0]) and torch.equal(weight, inputs[1])


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_no_tokens_give_zero_gradients_tied_to_the_inputs(backend):
    hidden, weight = (x.requires_grad_() for x in operands(6, 20, 4))
    none = torch.empty(0, dtype=torch.int64)
    with use_backend(selected_logprob=backend):
        logprob, entropy = selected_logprob(hidden, weight, none, none, with_entropy=True)
    (logprob.sum() + entropy.sum()).backward()
    assert logprob.shape == entropy.shape == (0,)
    assert torch.equal(hidden.grad, torch.zeros(6, 4)) and torch.equal(weight.grad, torch.zeros(20, 4))


def test_tokens_without_upstream_gradient_cannot_poison(narrow_tiles):
    hidden, weight = operands(6, 50, 4)
    hidden[2], hidden[4] = float("nan"), float("inf")
    hidden, weight = hidden.requires_grad_(), weight.requires_grad_()
    logprob, entropy = selected_logprob(hidden, weight, torch.arange(6), torch.arange(6), with_entropy=True)
    mask = torch.tensor([True, True, False, True, False, True])
    (torch.where(mask, logprob, 0).sum() + torch.where(mask, entropy, 0).sum()).backward()
    assert hidden.grad.isfinite().all() and weight.grad.isfinite().all()
    assert (hidden.grad[~mask] == 0).all() and (hidden.grad[mask] != 0).all()


def test_all_upstream_gradients_zero_is_exactly_zero():
    hidden, weight = (x.requires_grad_() for x in operands(6, 20, 4))
    logprob, _ = selected_logprob(hidden, weight, torch.arange(6), torch.arange(6))
    (0 * logprob).sum().backward()
    assert torch.equal(hidden.grad, torch.zeros(6, 4)) and torch.equal(weight.grad, torch.zeros(20, 4))


def test_tied_embedding_gets_both_gradients():
    def loss(backend):
        table = random(30, 8).double().requires_grad_()
        ids = integers(30, 12)
        with use_backend(selected_logprob=backend):
            logprob, _ = selected_logprob(table[ids].tanh(), table, torch.arange(12), ids.roll(-1))
        return torch.autograd.grad(logprob.sum(), table)[0]

    torch.testing.assert_close(loss("torch"), loss("reference"), rtol=0, atol=1e-12)


class Recorder(TorchDispatchMode):
    """Names of the ops that ran and the shapes they returned."""

    def __init__(self):
        super().__init__()
        self.ops, self.shapes = [], set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.ops.append(func.overloadpacket.__name__)
        self.shapes |= {tuple(x.shape) for x in tree_leaves(out) if isinstance(x, torch.Tensor)}
        return out


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_only_the_gradients_asked_for_are_computed(narrow_tiles, frozen):
    hidden, weight = operands(6, 50, 4)
    leaf = (weight if frozen == "hidden" else hidden).requires_grad_()
    logprob, _ = selected_logprob(hidden, weight, integers(6, 9), integers(50, 9))
    with Recorder() as seen:
        torch.autograd.grad(logprob.sum(), leaf)
    tiles = 4
    assert seen.ops.count("mm") == tiles * (2 if frozen == "hidden" else 1)
    assert seen.ops.count("addmm_") == tiles * (0 if frozen == "hidden" else 1)
    assert frozen == "hidden" or (50, 4) not in seen.shapes


def test_scoring_without_gradients_saves_nothing():
    hidden, weight = operands(6, 50, 4)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        logprob, _ = selected_logprob(hidden, weight, torch.arange(6), torch.arange(6))
        with torch.no_grad():
            quiet, _ = selected_logprob(hidden.requires_grad_(), weight, torch.arange(6), torch.arange(6))
    assert not saved and not logprob.requires_grad and not quiet.requires_grad


def test_never_holds_tokens_by_vocabulary(narrow_tiles):
    hidden, weight = (x.requires_grad_() for x in operands(40, 200, 4))
    with Recorder() as seen:
        logprob, entropy = selected_logprob(
            hidden, weight, torch.arange(40), torch.arange(40), with_entropy=True
        )
        (logprob.sum() + entropy.sum()).backward()
    assert max(shape[0] * shape[1] for shape in seen.shapes if len(shape) == 2) <= 200 * 4


def test_gradient_does_not_depend_on_the_split():
    hidden, weight = (x.double().requires_grad_() for x in operands(9, 40, 4))
    row, target, c = integers(9, 30), integers(40, 30), random(30, dtype=torch.float64)

    def gradient(part):
        logprob, _ = selected_logprob(hidden, weight, row[part], target[part])
        return torch.autograd.grad((c[part] * logprob).sum(), (hidden, weight))

    whole, pieces = (
        gradient(slice(None)),
        [gradient(slice(0, 1)), gradient(slice(1, 30)), gradient(slice(30, 30))],
    )
    for total, *parts in zip(whole, *pieces, strict=True):
        torch.testing.assert_close(sum(parts), total, rtol=0, atol=1e-12)


def test_scores_hardly_depend_on_the_micro_batch():
    hidden, weight = operands(64, 300, 32)
    target = integers(300, 64)
    together, _ = selected_logprob(hidden, weight, torch.arange(64), target)
    for m in (0, 13, 63):
        alone, _ = selected_logprob(
            hidden[m : m + 1], weight, torch.tensor([0]), integers(300, 64)[m : m + 1]
        )
        torch.testing.assert_close(alone[0], together[m], rtol=0, atol=1e-5)


MEMORY = """
import resource, torch
from sprout.kernels import selected_logprob
N, V, H = 8192, 151936, 64
hidden, weight = torch.randn(N, H).requires_grad_(), torch.randn(V, H).requires_grad_()
row, target = torch.randperm(N), torch.randint(0, V, (N,))
def run(rows):
    logprob, entropy = selected_logprob(hidden, weight, row[:rows], target[:rows], with_entropy=True)
    return torch.autograd.grad(logprob.sum() + entropy.sum(), (hidden, weight))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
run(8)
warm = peak()
run(N)
print(peak() - warm)
"""


@pytest.mark.slow
def test_extra_memory_at_8192_tokens_and_151936_words():
    """Beyond a run of 8 tokens, which already has the inputs, the gradients and one tile of weights."""
    code = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    extra_mib = float(code.stdout)
    assert extra_mib < 128 - tiled.TILE_BYTES / 2**20, f"{extra_mib:.0f} MiB"
