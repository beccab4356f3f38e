import pytest
import torch

from sprout.kernels.rotary.triton import rotary

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def both(rows, heads, D, dtype):
    q = torch.empty(rows, heads[0], D, dtype=dtype, device="meta", requires_grad=True)
    k = torch.empty(rows, heads[1], D, dtype=dtype, device="meta", requires_grad=True)
    angles = torch.empty(rows, D // 2, device="meta")
    upstream = [torch.empty_like(q), torch.empty_like(k)]
    return lambda: torch.autograd.backward(rotary(q, k, angles, angles), upstream)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiles(compiled, dtype):
    forward, backward = compiled(both(8192, (14, 2), 64, dtype))
    assert (forward.sizes["DIRECTION"], backward.sizes["DIRECTION"]) == (1, -1)


@pytest.mark.parametrize("D", [16, 256])
def test_compiles_smallest_and_largest_heads(compiled, D):
    compiled(both(8192, (16, 8), D, torch.bfloat16))


def test_compiles_with_one_gradient(compiled):
    q = torch.empty(64, 14, 64, device="meta", requires_grad=True)
    angles = torch.empty(64, 32, device="meta")
    compiled(lambda: rotary(q, q[:, :2], angles, angles)[0].backward(torch.empty_like(q)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("D", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(1, 1), (6, 5), (40, 8), (64, 64), (128, 8)], ids=str)
def test_compiles_whole_table(compiled, heads, D, dtype):
    compiled(both(8192, heads, D, dtype))


def test_offsets_beyond_int32(interpreter, sparse):
    far = sparse(4, 8, row_stride=2**30)
    far.copy_(torch.arange(32).view(4, 8))
    q, k = far.view(4, 2, 4), far.view(4, 2, 4)[:, 1:]
    cos, sin = torch.rand(4, 2), torch.rand(4, 2)
    for x, y in zip(rotary(q, k, cos, sin), rotary(q.clone(), k.clone(), cos, sin), strict=True):
        assert torch.equal(x, y)


def test_too_many_heads(interpreter):
    q = torch.ones(1, 1024, 128)
    with pytest.raises(ValueError, match="32768 pairs a row at most, not 65536"):
        rotary(q, q, torch.ones(1, 64), torch.ones(1, 64))
