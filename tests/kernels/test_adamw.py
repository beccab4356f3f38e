import pytest
import torch

from sprout.kernels import adamw_, use_backend

SHAPES = [(30, 7), (7,), (1,), (0,), (5, 1, 33)]
SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def tensors(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in SHAPES]


def train(steps, dtype, grad_dtype=None, grad_scale=1.0, **changed):
    params, mean, square = (
        tensors(0, dtype),
        [x * 0 for x in tensors(0, dtype)],
        [x * 0 for x in tensors(0, dtype)],
    )
    for step in range(1, steps + 1):
        grads = tensors(step, grad_dtype or dtype)
        settings = {**SETTINGS, **changed}
        adamw_(params, grads, mean, square, step=step, grad_scale=grad_scale, **settings)
    return params


@pytest.mark.parametrize(
    "changed", [{}, {"weight_decay": 0.0}, {"betas": (0.0, 0.999), "eps": 1e-3}], ids=str
)
def test_equals_torch_optimizer_and_float64(cpu_backend, changed):
    with use_backend(adamw_=cpu_backend):
        ours = train(20, torch.float32, **changed)
    with use_backend(adamw_="reference"):
        exact = train(20, torch.float64, **changed)
    theirs = tensors(0)
    optimizer = torch.optim.AdamW(theirs, foreach=False, **{**SETTINGS, **changed})
    for step in range(1, 21):
        for param, grad in zip(theirs, tensors(step), strict=True):
            param.grad = grad
        optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours, [x.float() for x in exact], rtol=1e-6, atol=1e-6)


def test_backends_agree_in_float64():
    results = []
    for name in ("torch", "reference"):
        with use_backend(adamw_=name):
            results.append(train(10, torch.float64, grad_scale=0.37))
    torch.testing.assert_close(*results, rtol=1e-13, atol=1e-13)


def test_grad_scale_leaves_gradients_alone(cpu_backend):
    params, grads = tensors(0), tensors(1)
    before = [x.clone() for x in grads]
    mean, square = [x * 0 for x in params], [x * 0 for x in params]
    with use_backend(adamw_=cpu_backend):
        adamw_(params, grads, mean, square, step=1, grad_scale=0.5, **SETTINGS)
    assert all(torch.equal(x, y) for x, y in zip(grads, before, strict=True))
    torch.testing.assert_close(mean, [0.1 * 0.5 * x for x in grads])
    torch.testing.assert_close(square, [0.05 * 0.25 * x**2 for x in grads])


def test_bfloat16_and_strided_gradients(cpu_backend):
    with use_backend(adamw_=cpu_backend):
        ours = train(5, torch.float32, grad_dtype=torch.bfloat16)
        grad = torch.arange(6.0).view(2, 3)
        for layout in (grad, grad.T.contiguous().T):
            param, mean, square = torch.ones(2, 3), torch.zeros(2, 3), torch.zeros(2, 3)
            adamw_([param], [layout], [mean], [square], step=1, **SETTINGS)
            torch.testing.assert_close(mean, 0.1 * grad)
    with use_backend(adamw_="reference"):
        rounded = train(5, torch.float64, grad_dtype=torch.bfloat16)
    torch.testing.assert_close(ours, [x.float() for x in rounded], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [8191, 8192, 8193, 20_000])
def test_native_blocks(size):
    """Every element moves by the same step, with gradients of two dtypes in one call."""
    pytest.importorskip("sprout.kernels._native", reason="not built", exc_type=ImportError)
    params = [torch.ones(size), torch.ones(size)]
    grads = [torch.full((size,), 0.5), torch.full((size,), 0.5, dtype=torch.bfloat16)]
    mean, square = [torch.zeros(size) for _ in params], [torch.zeros(size) for _ in params]
    with use_backend(adamw_="native"):
        adamw_(params, grads, mean, square, step=1, **SETTINGS)
    for param in params:
        torch.testing.assert_close(param, torch.full((size,), 1 - 1e-2 * 0.1 - 1e-2))


def test_zero_gradient_only_decays(cpu_backend):
    param, grad = torch.ones(3), torch.zeros(3)
    with use_backend(adamw_=cpu_backend):
        adamw_([param], [grad], [torch.zeros(3)], [torch.zeros(3)], step=1, **SETTINGS)
    torch.testing.assert_close(param, torch.full((3,), 1 - 1e-2 * 0.1))


def test_parameters_that_require_grad_and_empty_lists():
    param = torch.nn.Parameter(torch.ones(3))
    adamw_([param], [torch.ones(3)], [torch.zeros(3)], [torch.zeros(3)], step=1, **SETTINGS)
    assert param.requires_grad and (param < 1).all()
    adamw_([], [], [], [], step=1, **SETTINGS)


def test_user_errors():
    x = torch.ones(3)
    with pytest.raises(ValueError, match="step counts from 1"):
        adamw_([x], [x], [x], [x], step=0, **SETTINGS)
    with pytest.raises(ValueError, match=r"have lengths \(1, 0, 1, 1\)"):
        adamw_([x], [], [x], [x], step=1, **SETTINGS)
    with pytest.raises(ValueError, match="parameter 0 differ in shape"):
        adamw_([x], [x[:2]], [x], [x], step=1, **SETTINGS)
    for bad in (x.bfloat16(), torch.ones(6)[::2]):
        with pytest.raises(ValueError, match="contiguous float32 or float64"):
            adamw_([bad], [x], [bad], [bad], step=1, **SETTINGS)
    y = x.double()
    with pytest.raises(ValueError, match="all be float32 or all float64"):
        adamw_([x, y], [x, y], [x, y], [x, y], step=1, **SETTINGS)
