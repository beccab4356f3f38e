"""Native kernels against the references on whatever shapes, strides and dtypes hypothesis finds."""

from importlib import import_module

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sprout.kernels import adamw_, rms_norm, rotary, selected_logprob, swiglu, use_backend

pytest.importorskip("sprout.kernels._native", reason="not built", exc_type=ImportError)

tiles = import_module("sprout.kernels.selected_logprob.tiles")
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
SEEDS = st.integers(0, 2**32 - 1)
# `assert_accurate` is a function without state, so one serves all examples.
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SETTINGS = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


@st.composite
def tensors(draw, *shape, dtype=None):
    """A random tensor of that shape: contiguous, transposed, broadcast along a dimension, or a slice."""
    generator = torch.Generator().manual_seed(draw(SEEDS))
    dtype = dtype or draw(DTYPES)
    layout = draw(st.sampled_from(["contiguous", "transposed", "broadcast", "sliced"]))
    if layout == "transposed":
        return (
            torch.randn(*reversed(shape), generator=generator).to(dtype).permute(*reversed(range(len(shape))))
        )
    if layout == "broadcast":
        narrow = list(shape)
        narrow[draw(st.integers(0, len(shape) - 1))] = 1
        return torch.randn(narrow, generator=generator).to(dtype).expand(shape)
    if layout == "sliced":
        step = draw(st.integers(1, 3))
        wide = torch.randn(*(size * step + 1 for size in shape), generator=generator).to(dtype)
        return wide[tuple(slice(1, None, step) for _ in shape)]
    return torch.randn(shape, generator=generator).to(dtype)


@quick
@given(st.data())
def test_rms_norm(assert_accurate, data):
    rows, size = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 70))
    x = data.draw(tensors(rows, size))
    weight = data.draw(tensors(size, dtype=x.dtype))
    assert_accurate("rms_norm", "native", lambda x, w: rms_norm(x, w, 1e-6), [x, weight])


@quick
@given(st.data())
def test_swiglu(assert_accurate, data):
    shape = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 70))
    gate = data.draw(tensors(*shape))
    up = data.draw(tensors(*shape, dtype=gate.dtype))
    assert_accurate("swiglu", "native", swiglu, [gate, up])


@quick
@given(st.data())
def test_rotary(assert_accurate, data):
    rows, half = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 40))
    q = data.draw(tensors(rows, data.draw(st.integers(1, 6)), 2 * half))
    k = data.draw(tensors(rows, data.draw(st.integers(1, 6)), 2 * half))
    angle = data.draw(tensors(rows, half, dtype=torch.float32))
    cos, sin = angle.cos(), angle.sin()
    assert_accurate("rotary", "native", rotary, [q, k, cos, sin], frozen=(2, 3))


@quick
@given(st.data())
def test_selected_logprob(assert_accurate, data):
    N, V, H, M = (data.draw(st.integers(1, n)) for n in (8, 60, 9, 20))
    hidden = data.draw(tensors(N, H))
    weight = data.draw(tensors(V, H, dtype=hidden.dtype))
    row = torch.tensor(data.draw(st.lists(st.integers(0, N - 1), min_size=M, max_size=M)))
    target = torch.tensor(data.draw(st.lists(st.integers(0, V - 1), min_size=M, max_size=M)))
    temperature = data.draw(st.sampled_from([1.0, 0.6, torch.linspace(0.5, 2, M)]))

    # Two outputs make two backwards, and a half-precision gradient that is rounded twice.
    with_entropy = hidden.dtype == torch.float32

    def scored(hidden, weight):
        logprob, entropy = selected_logprob(hidden, weight, row, target, temperature, with_entropy)
        return (logprob, entropy) if with_entropy else logprob

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE_BYTES", 0)
        patch.setattr(tiles, "NARROWEST_TILE", data.draw(st.integers(1, 48)))
        assert_accurate("selected_logprob", "native", scored, [hidden, weight])


@quick
@given(st.data())
def test_adamw(data):
    shapes = data.draw(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 70)), min_size=1, max_size=4))
    grads = [data.draw(tensors(*shape)) for shape in shapes]
    step, scale = data.draw(st.integers(1, 1000)), data.draw(st.floats(0.01, 1))
    results = []
    for backend, dtype in (("native", torch.float32), ("reference", torch.float64)):
        generator = torch.Generator().manual_seed(0)
        states = [[torch.rand(shape, generator=generator).to(dtype) for shape in shapes] for _ in range(3)]
        with use_backend(adamw_=backend):
            adamw_(states[0], grads, *states[1:], step=step, grad_scale=scale, **SETTINGS)
        results.append([x.float() for state in states for x in state])
    torch.testing.assert_close(*results, rtol=2e-6, atol=1e-6)
