"""SwiGLU as plain differentiable torch: the specification."""

import torch
from torch import Tensor


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """gate, up [R, I] -> [R, I]."""
    return torch.nn.functional.silu(gate) * up
