import pytest
import torch
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from sprout.kernels import rms_norm, use_backend

SHAPES = [(1, 1), (3, 5), (7, 64), (2, 3, 96), (33, 257), (0, 8)]


def norm(x, weight):
    return rms_norm(x, weight, 1e-6)


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_accuracy(assert_accurate, cpu_path, shape):
    backend, dtype = cpu_path
    assert_accurate(
        "rms_norm", backend, norm, [random(*shape, dtype=dtype), random(shape[-1], seed=1, dtype=dtype)]
    )


def test_weight_gradient_over_many_rows(assert_accurate, cpu_backend):
    for rows in (127, 128, 129, 1000):
        assert_accurate("rms_norm", cpu_backend, norm, [random(rows, 12), random(12, seed=1)])


@pytest.mark.parametrize("magnitude", [1e-8, 1e4, 1e15])
def test_magnitudes(assert_accurate, cpu_backend, magnitude):
    x = random(5, 40)
    unit = lambda x, weight: rms_norm(x * magnitude, weight, 1e-6)  # noqa: E731
    assert_accurate("rms_norm", cpu_backend, unit, [x, random(40, seed=1)])


def test_equals_qwen2(cpu_path):
    backend, dtype = cpu_path
    theirs = Qwen2RMSNorm(64, eps=1e-6).to(dtype)
    theirs.weight.data = random(64, dtype=dtype)
    x = random(9, 64, seed=2, dtype=dtype)
    with use_backend(rms_norm=backend):
        ours = rms_norm(x, theirs.weight, 1e-6)
    torch.testing.assert_close(ours, theirs(x), rtol=0 if dtype != torch.float32 else 1e-6, atol=1e-6)


def test_exact_gradients():
    x, weight = random(3, 7).double().requires_grad_(), random(7, seed=1).double().requires_grad_()
    with use_backend(rms_norm="torch"):
        assert torch.autograd.gradcheck(norm, (x, weight))


def test_strided_and_broadcast_inputs(assert_accurate, cpu_backend):
    def strided(x, weight):
        return rms_norm(x[:, 1:, ::2], weight[::2], 1e-6)

    assert_accurate("rms_norm", cpu_backend, strided, [random(4, 3, 10), random(10, seed=1)])
    expanded = lambda x, weight: rms_norm(x.expand(6, 10), weight, 1e-6)  # noqa: E731
    assert_accurate("rms_norm", cpu_backend, expanded, [random(1, 10), random(10, seed=1)])


def test_broadcast_upstream_and_two_backwards(cpu_backend):
    x, weight = random(4, 6).requires_grad_(), random(6, seed=1).requires_grad_()
    with use_backend(rms_norm=cpu_backend):
        total = norm(x, weight).sum()
    total.backward(retain_graph=True)
    first = x.grad.clone(), weight.grad.clone()
    total.backward()
    torch.testing.assert_close((x.grad, weight.grad), (2 * first[0], 2 * first[1]))
    with use_backend(rms_norm="reference"):
        wanted = torch.autograd.grad(norm(x, weight).sum(), (x, weight))
    torch.testing.assert_close(first, wanted)


@pytest.mark.parametrize("frozen", [0, 1])
def test_only_the_gradient_asked_for(assert_accurate, cpu_backend, frozen):
    assert_accurate("rms_norm", cpu_backend, norm, [random(5, 8), random(8, seed=1)], frozen=(frozen,))


def test_wrong_weight():
    for weight in (torch.zeros(7), torch.zeros(8, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"rms_norm: weight must be \[8\] torch.float32, not"):
            rms_norm(torch.zeros(2, 8), weight, 1e-6)
