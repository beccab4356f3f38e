import pytest
import torch
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from sprout.kernels import rotary, use_backend

HEADS = [(1, 1), (2, 1), (6, 2), (5, 5)]


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def angles(positions, D):
    angle = positions[:, None] * 10000.0 ** (-torch.arange(0, D, 2) / D)
    return angle.cos(), angle.sin()


def inputs(rows, heads, D, dtype=torch.float32):
    positions = torch.arange(rows) % 5  # positions restart, as in a tree
    cos, sin = angles(positions, D)
    return [random(rows, heads[0], D, dtype=dtype), random(rows, heads[1], D, seed=1, dtype=dtype), cos, sin]


@pytest.mark.parametrize("D", [2, 16, 80, 128])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_accuracy(assert_accurate, cpu_path, heads, D):
    backend, dtype = cpu_path
    assert_accurate("rotary", backend, rotary, inputs(7, heads, D, dtype), frozen=(2, 3))


@pytest.mark.parametrize("rows", [0, 1, 33])
def test_row_counts(assert_accurate, cpu_backend, rows):
    assert_accurate("rotary", cpu_backend, rotary, inputs(rows, (4, 2), 8), frozen=(2, 3))


def test_equals_transformers(cpu_backend):
    q, k, cos, sin = inputs(9, (4, 2), 16)
    with use_backend(rotary=cpu_backend):
        ours = rotary(q, k, cos, sin)
    wide = [torch.cat((x, x), -1)[None] for x in (cos, sin)]
    theirs = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], *wide)
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y[0].transpose(0, 1))


def test_inputs_are_kept_and_views_accepted(assert_accurate, cpu_backend):
    def fused(projection, cos, sin):
        q, k, _ = projection.view(6, 8, 16).split((4, 2, 2), dim=1)
        return rotary(q, k, cos, sin)

    projection, (cos, sin) = random(6, 128), angles(torch.arange(6), 16)
    before = projection.clone()
    assert_accurate("rotary", cpu_backend, fused, [projection, cos, sin], frozen=(1, 2))
    assert torch.equal(projection, before)


def test_exact_gradients():
    q, k, cos, sin = [x.double() for x in inputs(3, (2, 1), 6)]
    with use_backend(rotary="torch"):
        assert torch.autograd.gradcheck(
            lambda q, k: rotary(q, k, cos, sin), (q.requires_grad_(), k.requires_grad_())
        )


def test_one_output_used_and_broadcast_upstream(cpu_backend):
    q, k, cos, sin = inputs(4, (2, 1), 8)
    q.requires_grad_(), k.requires_grad_()
    with use_backend(rotary=cpu_backend):
        rotated, _ = rotary(q, k, cos, sin)
    loss = rotated.sum()
    loss.backward(retain_graph=True)
    first = q.grad.clone()
    loss.backward()
    torch.testing.assert_close(q.grad, 2 * first)
    with use_backend(rotary="reference"):
        (wanted,) = torch.autograd.grad(rotary(q, k, cos, sin)[0].sum(), q)
    torch.testing.assert_close(first, wanted)


def test_wrong_shapes():
    q, k, cos, sin = inputs(4, (2, 1), 8)
    with pytest.raises(ValueError, match="same rows and one even head size"):
        rotary(q, k[:3], cos, sin)
    with pytest.raises(ValueError, match="same rows and one even head size"):
        rotary(q[..., :7], k[..., :7], cos, sin)
    with pytest.raises(ValueError, match=r"cos and sin must be \[4, 4\]"):
        rotary(q, k, torch.cat((cos, cos), -1), sin)
