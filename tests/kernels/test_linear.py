"""`linear` on a CPU without units for half precision: float32 products and gradients, rounded once."""

from importlib import import_module

import pytest
import torch
import torch.nn.functional as F

from sprout.kernels import linear

module = import_module("sprout.kernels.linear")  # the function has the module's name
HALF = [torch.bfloat16, torch.float16]
ROWS, IN, OUT = 5, 24, 7


@pytest.fixture
def no_units(monkeypatch):
    monkeypatch.setattr(module, "multiplies", lambda dtype: dtype not in HALF)


@pytest.fixture(params=[2**20, 2 * IN, 1], ids=["one block", "two rows a block", "less than a row"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", request.param)


def operands(dtype, bias):
    generator = torch.Generator().manual_seed(0)
    shapes = [(ROWS, IN), (OUT, IN), (OUT,)][: 3 if bias else 2]
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_equals_wide_products_rounded_once(no_units, blocks, dtype, bias):
    own, wide = operands(dtype, bias), [x.detach().double().requires_grad_() for x in operands(dtype, bias)]
    out, exact = linear(*own), F.linear(*wide)
    upstream = torch.randn(ROWS, OUT, generator=torch.Generator().manual_seed(1)).to(dtype)
    out.backward(upstream)
    exact.backward(upstream.double())
    half_ulp = torch.finfo(dtype).eps / 2
    for found, expected in zip([out, *(x.grad for x in own)], [exact, *(x.grad for x in wide)], strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=1.01 * half_ulp, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(linear(*own), out)


def test_only_the_asked_gradients_are_computed(no_units):
    x, weight, bias = operands(torch.bfloat16, True)
    linear(x, weight.detach(), bias.detach()).sum().backward()
    assert x.grad is not None and weight.grad is None and bias.grad is None


def test_nothing_wide_is_kept_between_the_passes(no_units):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        linear(*operands(torch.bfloat16, False))
    assert kept and all(x.dtype == torch.bfloat16 for x in kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_other_precisions_are_torchs_own(no_units, dtype):
    x, weight = operands(dtype, False)
    assert torch.equal(linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize(
    ("found", "expected"),
    [({"avx2": True}, False), ({"avx512_bf16": True}, True), ({"neon": True, "bf16": True}, True)],
)
def test_units_are_what_the_cpu_says(monkeypatch, found, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    assert module.multiplies.__wrapped__(torch.bfloat16) is expected
    assert module.multiplies.__wrapped__(torch.float32)
