import pytest
import torch

from sprout.kernels.adamw.reference import adamw_ as reference
from sprout.kernels.adamw.triton import TABLE, adamw_

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "grad_scale": 0.5}
BLOCK = TABLE["interpreter"]["all"]["BLOCK"]


def state(shapes, dtype=torch.float32, **options):
    """params, grads (of dtype), exp_avg, exp_avg_sq."""
    kinds = [[torch.rand(shape, **options) for shape in shapes] for _ in range(4)]
    return [kinds[0], [grad.to(dtype) for grad in kinds[1]], *kinds[2:]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiles_to_wide_loads(compiled, dtype):
    (kernel,) = compiled(
        lambda: adamw_(*state([(4096, 896), (896,)], dtype, device="meta"), step=1, **SETTINGS)
    )
    assert kernel.ptx.count("ld.global.v4") + kernel.ptx.count("ld.global.v2") >= 4


def test_one_launch_for_many_tensors(compiled):
    many = state([(896,)] * 200 + [(0,), (4_000_000_000,)], device="meta")
    (kernel,) = compiled(lambda: adamw_(*many, step=1, **SETTINGS))
    assert kernel.grid == (200 + 976_563,)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_sizes_around_blocks_and_chunks(interpreter, size):
    shapes = [(size,), (0,), (2,), (BLOCK,), (0,), (size,), (5, 3)]
    torch.manual_seed(0)
    ours = state(shapes)
    theirs = [[x.clone() for x in kind] for kind in ours]
    adamw_(*ours, step=3, **SETTINGS)
    reference(*theirs, step=3, **SETTINGS)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_mixed_gradient_types_and_odd_addresses(interpreter):
    torch.manual_seed(0)
    flat = torch.rand(4, 41)
    params, mean, square = ([kind[1:21], kind[21:]] for kind in flat[:3])
    grads = [flat[3, 1:21].half(), flat[3, 21:].double()]
    ours = [params, grads, mean, square]
    theirs = [[x.clone() for x in kind] for kind in ours]
    adamw_(*ours, step=1, **SETTINGS)
    reference(*theirs, step=1, **SETTINGS)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
