"""The native kernels, from the build with the widest vectors that this CPU has.

torch's own choice is followed, so `ATEN_CPU_CAPABILITY=avx2` or `=default` narrows both.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

WIDEST_FIRST = ("avx512", "avx2", "baseline")


def _choose(capability: str) -> str:
    """The widest instruction set that was built and is not above torch's `capability`."""
    widest = capability.lower() if capability.lower() in WIDEST_FIRST else "baseline"
    for isa in WIDEST_FIRST[WIDEST_FIRST.index(widest) :]:
        if find_spec(f"sprout.kernels._native_{isa}") is not None:
            return isa
    raise ImportError(f"no native module for {widest} or below")


ISA = _choose(torch.backends.cpu.get_cpu_capability())
_module = import_module(f"sprout.kernels._native_{ISA}")


def __getattr__(name: str) -> Any:
    return getattr(_module, name)
