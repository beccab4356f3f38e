"""Running everything on one backend, as far as it has the ops; `--backend all` adds every other one."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from sprout.kernels.dispatch import BACKENDS, OPS, PRIORITY, unavailable, use_backend

P = ParamSpec("P")
R = TypeVar("R")


ALL = "all"


def choices(backend: str, device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """The ops that can run on `backend` for such tensors; the others keep their default.

    Raises ValueError for a name that is no backend, and where no op can run on it.
    """
    if backend not in BACKENDS:
        raise ValueError(f"--backend {backend}: not one of {', '.join(BACKENDS)}")
    reasons = {op: unavailable(op, backend, device, dtype) for op in OPS}
    if all(reasons.values()):
        raise ValueError(f"--backend {backend} has no op for {device.type} {dtype}: {reasons[OPS[0]]}")
    return {op: backend for op, why in reasons.items() if why is None}


def on_backend(backend: str, run: Callable[P, R], device: torch.device, dtype: torch.dtype) -> Callable[P, R]:
    """`run` with every op on `backend` that can be."""
    chosen = choices(backend, device, dtype)

    def pinned(*args: P.args, **kwargs: P.kwargs) -> R:
        with use_backend(**chosen):
            return run(*args, **kwargs)

    return pinned


def by_backend(
    name: str, run: Callable[P, R], backend: str | None, device: torch.device, dtype: torch.dtype
) -> dict[str, Callable[P, R]]:
    """`run` on `backend`, its default for None and ALL; with ALL also "NAME, BACKEND" for every other one."""
    if backend == ALL:
        more = {f"{name}, {b}": on_backend(b, run, device, dtype) for b in others(device, dtype)}
        return {name: run} | more
    return {name: run if backend is None else on_backend(backend, run, device, dtype)}


def others(device: torch.device, dtype: torch.dtype) -> list[str]:
    """Backends, besides the one that is preferred anyway, that have an op for such tensors."""
    able = [b for b in BACKENDS if any(unavailable(op, b, device, dtype) is None for op in OPS)]
    return [backend for backend in able if backend != PRIORITY[device.type][0]]
