import pytest
import torch

from sprout.kernels import use_backend
from sprout.kernels.add_rms_norm.triton import add_rms_norm
from sprout.kernels.rms_norm.triton import TABLE, rms_norm

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
LARGEST_ROWS = list(TABLE["sm80"])


def meta(*shape, dtype=torch.bfloat16, requires_grad=True):
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=requires_grad)


def norm(rows, H, dtype, frozen=False):
    x, weight = meta(rows, H, dtype=dtype), meta(H, dtype=dtype, requires_grad=not frozen)
    return lambda: rms_norm(x, weight, 1e-6).backward(torch.empty_like(x))


def add_and_norm(rows, H, dtype):
    x, residual, weight = meta(rows, H, dtype=dtype), meta(rows, H, dtype=dtype), meta(H, dtype=dtype)
    upstream = [torch.empty_like(x), torch.empty_like(x)]
    return lambda: torch.autograd.backward(add_rms_norm(x, residual, weight, 1e-6), upstream)


def spilling(H):
    """The widest rows do not fit into the registers of the backward."""
    return ("_backward",) if H > 8192 else ()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiles(compiled, dtype):
    for function in (norm(8192, 896, dtype), add_and_norm(8192, 896, dtype)):
        assert [kernel.name for kernel in compiled(function)] == ["_forward", "_backward"]


@pytest.mark.parametrize("H", [64, LARGEST_ROWS[-1]])
def test_compiles_smallest_and_largest_rows(compiled, H):
    compiled(add_and_norm(8192, H, torch.bfloat16), spilling(H))


def test_compiles_with_frozen_weight(compiled):
    assert not compiled(norm(8192, 896, torch.bfloat16, frozen=True))[1].sizes["NEEDS_WEIGHT"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("H", [*LARGEST_ROWS, 80, 3584, 5120])
def test_compiles_whole_table(compiled, H, dtype):
    compiled(norm(8192, H, dtype), spilling(H))
    compiled(add_and_norm(8192, H, dtype), spilling(H))


def test_rows_too_wide(interpreter):
    x = torch.ones(1, LARGEST_ROWS[-1] + 1)
    with use_backend(rms_norm="triton"), pytest.raises(ValueError, match="rows of up to 16384 elements"):
        rms_norm(x, x[0], 1e-6)


def test_offsets_beyond_int32(interpreter, sparse):
    x, weight = sparse(4, 8, row_stride=2**30), torch.ones(8)
    x.copy_(torch.arange(32).view(4, 8))
    upstream = sparse(4, 8, row_stride=2**30)
    upstream.copy_(torch.arange(32).flip(0).view(4, 8))
    near = x.clone().requires_grad_()
    rms_norm(near, weight, 1e-6).backward(upstream.clone())
    far = x.requires_grad_()
    out = rms_norm(far, weight, 1e-6)
    assert torch.equal(out, rms_norm(near, weight, 1e-6))
    out.backward(upstream)
    assert torch.equal(far.grad, near.grad)
