"""Tensors as the NumPy arrays that native kernels read and write: cheaper to pass than DLPack capsules."""

from typing import Any

from torch import Tensor


def rows(x: Tensor) -> Any:
    """[..., H] as a matrix whose rows are contiguous; shares the memory of a contiguous x."""
    matrix = x.detach().reshape(-1, x.shape[-1])
    return (matrix if matrix.stride(1) == 1 else matrix.contiguous()).numpy()


def vector(x: Tensor) -> Any:
    """All elements in order; shares the memory of a contiguous x."""
    return x.detach().reshape(-1).contiguous().numpy()
