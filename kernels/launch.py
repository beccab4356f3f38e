"""How Triton kernels are launched: block shapes from small tables, by architecture and shape class.

An op's `triton.py` holds a table and takes one row of it per launch:

    TABLE: Table = {
        "sm80": {"narrow": Blocks({"ROWS": 8}, warps=4), "wide": Blocks({"ROWS": 1}, warps=8)},
        "interpreter": {"narrow": Blocks({"ROWS": 2}), "wide": Blocks({"ROWS": 1})},
    }
    blocks = choose(TABLE, x.device, "narrow" if H <= 256 else "wide")
    kernel[(cdiv(rows, blocks["ROWS"]),)](x, ..., **blocks.launch())

Rows of "interpreter" serve CPU tensors under `TRITON_INTERPRET=1`: tiny blocks, so that tiny tensors cross
block edges. This module imports neither triton nor a backend.
"""

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

INTERPRETER = "interpreter"
# Bounds of the second and third dimension of a CUDA grid; the first may reach 2^31 - 1.
MAX_GRID_YZ = 65_535


@dataclass(frozen=True)
class Blocks:
    """One row of a table: the block sizes of a kernel by parameter name, its warps and pipeline stages."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    warps: int = 4
    stages: int = 2

    def __getitem__(self, name: str) -> int:
        return self.sizes[name]

    def launch(self) -> dict[str, Any]:
        """Keyword arguments of the launch. Products and sums fuse whatever Triton's default is."""
        return {**self.sizes, "num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}


Table = Mapping[str, Mapping[Hashable, Blocks]]


def choose(table: Table, device: torch.device, shape_class: Hashable) -> Blocks:
    """The row of `table` for a shape class on a device.

    An architecture without rows of its own takes those of the newest one before it, else the oldest ones.
    """
    own = architecture(device)
    if own in table:
        return table[own][shape_class]
    known = sorted((name for name in table if name != INTERPRETER), key=_generation)
    older = [name for name in known if _generation(name) <= _generation(own)]
    return table[older[-1] if older else known[0]][shape_class]


def architecture(device: torch.device) -> str:
    """sm80, sm90, ... of a CUDA device; interpreter for any other."""
    return _capability(device.index) if device.type == "cuda" else INTERPRETER


def interpreting() -> bool:
    """Whether Triton kernels run in its interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@cache
def _capability(index: int | None) -> str:
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm{major}{minor}"


def _generation(name: str) -> int:
    return 0 if name == INTERPRETER else int(name.removeprefix("sm"))
