import pytest
import torch

from sprout.kernels.swiglu.triton import swiglu

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def both(rows, columns, dtype):
    gate, up = [torch.empty(rows, columns, dtype=dtype, device="meta", requires_grad=True) for _ in range(2)]
    return lambda: swiglu(gate, up).backward(torch.empty_like(gate))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiles(compiled, dtype):
    assert [kernel.name for kernel in compiled(both(8192, 4864, dtype))] == ["_forward", "_backward"]
    compiled(both(100_000, 96, dtype))


def test_offsets_beyond_int32(interpreter, sparse):
    gate, up, upstream = [sparse(4, 8, row_stride=2**30) for _ in range(3)]
    for seed, x in enumerate((gate, up, upstream)):
        x.copy_(torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)))
    far, near = [[gate.detach(), up.detach()], [gate.clone(), up.clone()]]
    for leaves, grad in ((far, upstream), (near, upstream.clone())):
        out = swiglu(*[x.requires_grad_() for x in leaves])
        out.backward(grad)
        leaves.append(out)
    assert torch.equal(far[2], near[2])
    assert torch.equal(far[0].grad, near[0].grad) and torch.equal(far[1].grad, near[1].grad)
