"""The accuracy rule on CUDA tensors, for each backend that a GPU has; everything here is skipped without one.

`SPROUT_TEST_DEVICE=cpu` runs the same tests on CPU tensors with the CPU's backends: a dry run of the tests.
"""

import os
from collections.abc import Callable, Iterator

import pytest
import torch

from sprout.kernels.dispatch import unavailable

# cuBLAS is deterministic only with a fixed workspace, to be asked for before its first call.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
DEVICE = torch.device(os.environ.get("SPROUT_TEST_DEVICE", "cuda"))
BACKENDS = {"cuda": ("triton", "torch"), "cpu": ("native", "torch")}[DEVICE.type]
FAR = {"cuda": 2**30, "cpu": 2**12}[DEVICE.type]  # stride of rows: the third lies beyond 2**31 on CUDA


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """`torch.empty` yields NaN; the references may use what torch calls nondeterministic on CUDA."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def device() -> torch.device:
    if DEVICE.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return DEVICE


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, device: torch.device) -> str:
    return request.param


@pytest.fixture
def check(assert_accurate: Callable[..., None], backend: str, device: torch.device) -> Callable[..., None]:
    """check(op, function, inputs, frozen=()): the rule, on the backend at hand; skips what it lacks."""

    def run(op: str, function: Callable, inputs: list[torch.Tensor], frozen: tuple[int, ...] = ()) -> None:
        require(op, backend, device, inputs[0].dtype)
        assert_accurate(op, backend, function, inputs, frozen)

    return run


@pytest.fixture
def random(device: torch.device) -> Callable[..., torch.Tensor]:
    """random(*shape, seed=0, dtype=torch.float32) -> normal numbers, the same on every device."""

    def make(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator).to(device, dtype)

    return make


@pytest.fixture
def integers(device: torch.device) -> Callable[..., torch.Tensor]:
    """integers(limit, count, seed=0) -> int64 [count] in [0, limit)."""

    def make(limit: int, count: int, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, limit, (count,), generator=generator).to(device)

    return make


@pytest.fixture
def far(random: Callable[..., torch.Tensor], device: torch.device) -> Callable[..., torch.Tensor]:
    """far(rows, *shape, seed=0, dtype) -> three rows at most, so far apart that int32 offsets overflow."""

    def make(rows: int, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        near = random(rows, *shape, seed=seed, dtype=dtype)
        needed = (rows - 1) * FAR * near.element_size() * 4  # four such tensors at a time
        if device.type == "cuda" and torch.cuda.mem_get_info()[0] < needed:
            pytest.skip(f"needs {needed / 2**30:.0f} GiB of free memory")
        memory = torch.zeros((rows - 1) * FAR + near[0].numel(), dtype=dtype, device=device)
        return memory.as_strided(near.shape, (FAR, *near.stride()[1:])).copy_(near)

    return make


def require(op: str, backend: str, device: torch.device, dtype: torch.dtype) -> None:
    if why := unavailable(op, backend, device, dtype):
        pytest.skip(f"{op} on {backend}: {why}")
