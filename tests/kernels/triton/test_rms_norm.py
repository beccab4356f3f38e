import pytest
import torch

from sprout.kernels.rms_norm.triton import rms_norm

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def forward_and_backward(rows, H, dtype):
    x, weight = meta(rows, H, dtype=dtype), meta(H, dtype=dtype)
    return lambda: rms_norm(x, weight, 1e-6).backward(torch.empty_like(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiles(compiled, dtype):
    kernels = compiled(forward_and_backward(8192, 4096, dtype))
    assert [kernel.name for kernel in kernels] == ["_forward", "_backward"]


@pytest.mark.parametrize("H", [64, 896, 5120, 16384])
def test_compiles_with_every_row_of_the_table(compiled, H):
    may_spill = ("_backward",) if H > 8192 else ()
    compiled(forward_and_backward(4096, H, torch.bfloat16), may_spill)
