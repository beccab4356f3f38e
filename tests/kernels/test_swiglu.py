import pytest
import torch

from sprout.kernels import swiglu, use_backend


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 64), (33, 130), (0, 8)], ids=str)
def test_accuracy(assert_accurate, cpu_path, shape):
    backend, dtype = cpu_path
    assert_accurate(
        "swiglu", backend, swiglu, [random(*shape, dtype=dtype), random(*shape, seed=1, dtype=dtype)]
    )


def test_extreme_gates(assert_accurate, cpu_backend):
    gate = torch.tensor([[-200.0, -90.0, -20.0, -1e-30, 0.0, 1e-30, 20.0, 90.0, 200.0]])
    assert_accurate("swiglu", cpu_backend, swiglu, [gate, random(1, 9)])


def test_halves_of_a_fused_projection(assert_accurate, cpu_backend):
    assert_accurate("swiglu", cpu_backend, lambda x: swiglu(*x.chunk(2, dim=-1)), [random(5, 24)])
    assert_accurate(
        "swiglu", cpu_backend, lambda x, y: swiglu(x.expand(5, 6), y.T), [random(1, 6), random(6, 5)]
    )


@pytest.mark.parametrize("frozen", [0, 1])
def test_only_the_gradient_asked_for(assert_accurate, cpu_backend, frozen):
    assert_accurate("swiglu", cpu_backend, swiglu, [random(5, 8), random(5, 8, seed=1)], frozen=(frozen,))


def test_exact_gradients():
    x, y = random(3, 5).double().requires_grad_(), random(3, 5, seed=1).double().requires_grad_()
    with use_backend(swiglu="torch"):
        assert torch.autograd.gradcheck(swiglu, (x, y))


def test_broadcast_upstream_and_two_backwards(cpu_backend):
    x, y = random(3, 5).requires_grad_(), random(3, 5, seed=1).requires_grad_()
    with use_backend(swiglu=cpu_backend):
        total = swiglu(x, y).sum()
    total.backward(retain_graph=True)
    first = x.grad.clone(), y.grad.clone()
    total.backward()
    torch.testing.assert_close((x.grad, y.grad), (2 * first[0], 2 * first[1]))
    with use_backend(swiglu="reference"):
        torch.testing.assert_close(first, torch.autograd.grad(swiglu(x, y).sum(), (x, y)))


def test_unlike_inputs():
    with pytest.raises(ValueError, match="must be alike"):
        swiglu(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="must be alike"):
        swiglu(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float64))
