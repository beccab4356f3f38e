"""Tensors as the NumPy arrays that native kernels read and write: cheaper to pass than DLPack capsules."""

from typing import Any

import numpy as np
from torch import Tensor, bfloat16, uint16


def array(x: Tensor) -> Any:
    """x with a contiguous last dimension; shares its memory if it is like that already.

    NumPy has no bfloat16: it crosses as its bits, uint16.
    """
    x = (x if x.stride(-1) == 1 else x.contiguous()).detach()
    return (x.view(uint16) if x.dtype == bfloat16 else x).numpy()


def parameter(x: Tensor) -> Any:
    """Like `array`, for a model's own tensors: `numpy()` would forbid FSDP to free their memory."""
    x = (x if x.stride(-1) == 1 else x.contiguous()).detach()
    return np.from_dlpack(x.view(uint16) if x.dtype == bfloat16 else x)


def rows(x: Tensor) -> Any:
    """[..., H] as a matrix whose rows are contiguous; shares the memory of a contiguous x."""
    return array(x if x.ndim == 2 else x.reshape(-1, x.shape[-1]))
