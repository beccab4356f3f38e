"""How Triton kernels are tested without a GPU.

In the interpreter (are the values right?): the shared tests of `tests/kernels/test_OP.py` that take
`cpu_backend` or `cpu_path` run the Triton backend too, as soon as `kernels/OP/triton.py` exists. A test that
is for Triton alone takes the fixture `interpreter` and asks for the backend:

    def test_offsets_beyond_int32(interpreter, sparse):
        x = sparse(4, 8, row_stride=2**30)  # 12 GiB of addresses, four pages of memory
        with use_backend(rms_norm="triton"):
            ...  # CPU tensors, float32 or float16: the interpreter is silently wrong on bfloat16

Ahead of time (does it fit on the GPU?): the fixture `compiled` runs a function on meta tensors and compiles
what it launches for sm_80 and sm_90, holding every kernel to the gates of `ahead_of_time.py`. Call the
backend's own function, and `.backward()` for the backward kernels:

    def test_compiles(compiled):
        x = torch.empty(8192, 4096, dtype=torch.bfloat16, device="meta", requires_grad=True)
        kernels = compiled(lambda: rms_norm(x, weight, 1e-6).backward(torch.empty_like(x)))

It returns what was compiled (name, sizes, grid, shared, registers, sass, ...) for further assertions. A
kernel takes about a second: mark the full product of dtypes and sizes `slow`, keep each kernel, each dtype,
and the smallest and largest size in the default run.
"""

import mmap
from collections.abc import Callable

import pytest
import torch
from ahead_of_time import Compiled, compiling

# Python 3.11 has no name for this constant of Linux.
MAP_NORESERVE = 0x4000


@pytest.fixture(params=["sm80", "sm90"])
def compiled(request: pytest.FixtureRequest) -> Callable[..., list[Compiled]]:
    """compiled(function, may_spill=()) -> the distinct kernels it launches, each held to the gates."""

    def compile_launches(function: Callable[[], object], may_spill: tuple[str, ...] = ()) -> list[Compiled]:
        with compiling(request.param, may_spill) as launches:
            function()
        return launches

    return compile_launches


@pytest.fixture
def sparse() -> Callable[..., torch.Tensor]:
    """sparse(rows, columns, row_stride) -> a float32 matrix of zeros; its gaps take addresses, no memory."""

    def allocate(rows: int, columns: int, row_stride: int) -> torch.Tensor:
        size = (rows - 1) * row_stride + columns
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        memory = torch.frombuffer(mmap.mmap(-1, 4 * size, flags), dtype=torch.float32)
        return memory.as_strided((rows, columns), (row_stride, 1))

    return allocate
