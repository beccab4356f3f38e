import pytest
import torch

from sprout.kernels import add_rms_norm, rms_norm, use_backend

SHAPES = [(1, 1), (3, 5), (7, 64), (2, 3, 96), (33, 257), (0, 8)]


def norm(x, residual, weight):
    return add_rms_norm(x, residual, weight, 1e-6)


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def inputs(*shape, dtype=torch.float32):
    x, residual = random(*shape, dtype=dtype), random(*shape, seed=1, dtype=dtype)
    return [x, residual, random(shape[-1], seed=2, dtype=dtype)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_accuracy(assert_accurate, cpu_path, shape):
    backend, dtype = cpu_path
    assert_accurate("add_rms_norm", backend, norm, inputs(*shape, dtype=dtype))


@pytest.mark.parametrize("magnitude", [1e-8, 1e15])
def test_magnitudes(assert_accurate, cpu_backend, magnitude):
    scaled = lambda x, residual, weight: norm(x * magnitude, residual * magnitude, weight)[0]  # noqa: E731
    assert_accurate("add_rms_norm", cpu_backend, scaled, inputs(5, 40))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_addition_and_rms_norm(dtype):
    x, residual, weight = inputs(9, 64, dtype=dtype)
    normalised, total = norm(x, residual, weight)
    assert torch.equal(total, x + residual)
    assert torch.equal(normalised, rms_norm(x + residual, weight, 1e-6))


def test_strided_and_broadcast_inputs(assert_accurate, cpu_backend):
    def strided(x, residual, weight):
        return norm(x[:, 1:, ::2], residual[:1].expand(4, 3, 10)[:, 1:, 1::2], weight[::2])

    assert_accurate("add_rms_norm", cpu_backend, strided, inputs(4, 3, 10))


@pytest.mark.parametrize("output", [0, 1])
def test_one_output_used_and_two_backwards(cpu_backend, output):
    leaves = [x.requires_grad_() for x in inputs(4, 6)]
    with use_backend(add_rms_norm=cpu_backend):
        total = norm(*leaves)[output].sum()
    total.backward(retain_graph=True)
    first = [None if x.grad is None else x.grad.clone() for x in leaves]
    total.backward()
    with use_backend(add_rms_norm="reference"):
        wanted = torch.autograd.grad(norm(*leaves)[output].sum(), leaves, allow_unused=True)
    for x, once, right in zip(leaves, first, wanted, strict=True):
        assert (once is None) == (right is None)
        if once is not None:
            torch.testing.assert_close(once, right)
            torch.testing.assert_close(x.grad, 2 * once)


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (0, 1)], ids=str)
def test_only_the_gradient_asked_for(assert_accurate, cpu_backend, frozen):
    assert_accurate("add_rms_norm", cpu_backend, norm, inputs(5, 8), frozen=frozen)


def test_unlike_inputs():
    x, weight = torch.zeros(2, 8), torch.zeros(8)
    with pytest.raises(ValueError, match="must be alike"):
        norm(x, torch.zeros(1, 8), weight)
    with pytest.raises(ValueError, match=r"weight must be \[8\] torch.float32"):
        norm(x, x, weight.double())
