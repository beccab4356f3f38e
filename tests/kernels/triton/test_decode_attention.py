"""The Triton kernels of decode attention: what only they can get wrong, and compilation."""

import pytest
import torch

from sprout.kernels import decode_attention, use_backend
from sprout.kernels.decode_attention import triton as backend


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ids(*values):
    return torch.tensor(values, dtype=torch.int32)


def test_offsets_beyond_int32(interpreter, sparse):
    """Pages 2^30 elements apart."""
    near = random(3, 32)
    q, table = random(2, 3, 16), ids(2, 1, 0)[None]
    caches = [x.unflatten(1, (2, 1, 16)) for x in (near, sparse(3, 32, 2**30).copy_(near))]
    with use_backend(decode_attention="triton"):
        results = [decode_attention(q, x, x, table, ids(0, 0), ids(5, 6)) for x in caches]
    assert torch.equal(*results)


def test_a_small_workspace_changes_no_bit(interpreter, monkeypatch):
    k, v = random(40, 16, 1, 8, seed=1), random(40, 16, 1, 8, seed=2)
    table, length = torch.arange(40, dtype=torch.int32).view(2, 20), ids(300, 129, 5, 320, 0)
    arguments = (random(5, 2, 8), k, v, table, ids(0, 1, 1, 0, 0), length)
    with use_backend(decode_attention="triton"):
        whole = decode_attention(*arguments)
        monkeypatch.setattr(backend, "WORKSPACE_BYTES", 1)
        assert torch.equal(decode_attention(*arguments), whole)


def decode(D, dtype, heads=(8, 2), rows=64):
    def run():
        q = torch.empty(rows, heads[0], D, dtype=dtype, device="meta")
        cache = torch.empty(1024, 16, heads[1], D, dtype=dtype, device="meta")
        table = torch.empty(rows, 512, dtype=torch.int32, device="meta")
        vector = torch.empty(rows, dtype=torch.int32, device="meta")
        backend.decode_attention(q, cache, cache, table, vector, vector, 0.1)

    return run


DEFAULT = [(16, torch.bfloat16), (64, torch.float16), (256, torch.bfloat16), (64, torch.float32)]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
OTHERS = [(D, t) for D in (16, 32, 64, 80, 96, 128, 192, 256) for t in DTYPES if (D, t) not in DEFAULT]


@pytest.mark.parametrize(
    ("D", "dtype"), [*DEFAULT, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)], ids=str
)
def test_compiles(compiled, D, dtype):
    kernels = compiled(decode(D, dtype))
    assert {kernel.name for kernel in kernels} == {"split_kernel", "combine_kernel"}


@pytest.mark.parametrize("heads", [(1, 1), (7, 1), pytest.param((64, 1), marks=pytest.mark.slow)], ids=str)
def test_compiles_for_groups_of_any_size(compiled, heads):
    compiled(decode(128, torch.bfloat16, heads))
