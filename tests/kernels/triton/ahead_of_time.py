"""Compiles exactly what an op launches for a GPU that need not exist, and holds the result to gates.

The op runs on meta tensors (or CPU tensors, where it must look at values), so shapes may be those of real
models, cost no memory, and any host synchronisation is an error. Every launch is compiled instead of run,
with the signature, alignment and options that the launch would have had.

Gates (KERNELS.md section 1): the grid fits, shared memory fits, no register spills, and a `tl.dot` of half
types becomes tensor-core instructions. A launch says whether products and sums fuse, for Triton's default
differs between its versions.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from sprout.kernels import launch

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
# Bytes of shared memory that one block may have.
SHARED_LIMIT = {"sm80": 166_912, "sm86": 101_376, "sm89": 101_376, "sm90": 232_448}
HALF_DOT = re.compile(r"tt\.dot .*x(bf16|f16)> \*")
TENSOR_CORE = re.compile(r"\b(HMMA|HGMMA)\.")


@dataclass(frozen=True)
class Compiled:
    """One kernel as the GPU would run it; `sizes` are its constexprs."""

    name: str
    sizes: dict[str, Any]
    grid: tuple[int, ...]
    shared: int
    ttir: str
    ptx: str
    cubin: bytes

    @cached_property
    def registers(self) -> int:
        """Registers of one thread."""
        return self._resource("REG")

    @cached_property
    def spilled(self) -> int:
        """Bytes of stack and local memory of one thread."""
        return self._resource("STACK") + self._resource("LOCAL")

    @cached_property
    def sass(self) -> str:
        """Machine instructions."""
        return _cuobjdump(self.cubin, "-sass")

    @cached_property
    def _usage(self) -> str:
        return _cuobjdump(self.cubin, "--dump-resource-usage")

    def _resource(self, name: str) -> int:
        found = re.search(rf"\b{name}:(\d+)", self._usage)
        assert found, self._usage
        return int(found[1])


@contextmanager
def compiling(architecture: str, may_spill: tuple[str, ...] = ()) -> Iterator[list[Compiled]]:
    """Compile the launches inside the block for "sm80", "sm90", ...; yields the growing list of them.

    Every distinct kernel is held to the gates at the end; those named in `may_spill` may spill registers.
    """
    compiled: dict[str, Compiled] = {}
    original = JITFunction.run

    def run(kernel: JITFunction, *args: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> None:
        assert "enable_fp_fusion" in options, f"{kernel.fn.__name__} leaves fusion to Triton's default"
        binary = original(kernel, *args, grid=grid, warmup=True, **options)
        if binary.hash not in compiled:
            names = {(i,): name for i, name in enumerate(kernel.arg_names)}
            sizes = {names[path]: value for path, value in binary.src.constants.items() if path in names}
            asm = binary.asm
            compiled[binary.hash] = Compiled(
                kernel.fn.__name__, sizes, grid, binary.metadata.shared, asm["ttir"], asm["ptx"], asm["cubin"]
            )
            launches.append(compiled[binary.hash])

    launches: list[Compiled] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_active", _AbsentGPU(int(architecture.removeprefix("sm"))))
        patch.setattr(JITFunction, "run", run)
        patch.setattr(launch, "architecture", lambda device: architecture)
        yield launches
    assert launches, "nothing was launched"
    for kernel in launches:
        _hold_to_gates(kernel, architecture, kernel.name in may_spill)


class _AbsentGPU:
    """What the just-in-time compiler asks of a driver; devices are numbered by their capability."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


def _hold_to_gates(kernel: Compiled, architecture: str, may_spill: bool) -> None:
    what = f"{kernel.name} {kernel.sizes} on {architecture}"
    first, *others = kernel.grid
    assert 0 < first < 2**31 and all(0 < n <= launch.MAX_GRID_YZ for n in others), f"{what}: {kernel.grid}"
    limit = SHARED_LIMIT[architecture]
    assert kernel.shared <= limit, f"{what}: {kernel.shared} bytes of shared memory, {limit} at most"
    assert may_spill or kernel.spilled == 0, f"{what}: spills {kernel.spilled} bytes a thread"
    if HALF_DOT.search(kernel.ttir):
        assert TENSOR_CORE.search(kernel.sass), f"{what}: no tensor-core instruction"


def _cuobjdump(cubin: bytes, option: str) -> str:
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [CUOBJDUMP, option, file.name], capture_output=True, text=True, check=True
        ).stdout
