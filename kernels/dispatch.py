"""Chooses the backend of every op: `triton` on CUDA, `native` on the CPU, else `torch`, else `reference`.

A backend is a file: `kernels/OP/BACKEND.py` holds a function named OP with the op's public signature. It is
imported at the first call that needs it, so importing `sprout.kernels` stays cheap and never needs triton or
a compiler. (An op's `__init__.py` must not `import torch`: once `torch.py` beside it is loaded, that name
means the sibling.)

`SPROUT_KERNELS="tree_attention=reference,rms_norm=torch"` or `with use_backend(...)` overrides the choice. An
override that cannot run is an error, never a fallback. With `TRITON_INTERPRET=1` an override may ask for
`triton` on CPU tensors (slow, for tests), and CUDA tensors are refused.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from sprout.kernels.launch import interpreting

OPS = (
    "rms_norm",
    "add_rms_norm",
    "rotary",
    "swiglu",
    "tree_attention",
    "selected_logprob",
    "policy_loss",
    "paired_logprob_loss",
    "decode_attention",
    "sample",
    "adamw_",
)
PRIORITY = {"cuda": ("triton", "torch", "reference"), "cpu": ("native", "torch", "reference")}
BACKENDS = ("triton", "native", "torch", "reference")
TRITON_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# What native code takes; the ops that are not named take float32 only.
NATIVE_DTYPES = {
    "rms_norm": (torch.float32, torch.bfloat16),
    "add_rms_norm": (torch.float32, torch.bfloat16),
    "rotary": (torch.float32, torch.bfloat16),
    "swiglu": (torch.float32, torch.bfloat16),
    "tree_attention": (torch.float32, torch.bfloat16),
    "decode_attention": (torch.float32, torch.bfloat16),
    "selected_logprob": (torch.float32, torch.bfloat16, torch.float16),
    "sample": (torch.float32, torch.bfloat16, torch.float16),
}

_overrides: ContextVar[Mapping[str, str] | None] = ContextVar("sprout_kernel_overrides", default=None)


@dataclass(frozen=True)
class OpStatus:
    """What one op runs on for float32 tensors of one device, and why its other backends do not."""

    op: str
    device: str
    backend: str | None
    unavailable: Mapping[str, str]


def resolve(op: str, tensor: torch.Tensor) -> Callable[..., Any]:
    """The implementation of `op` for tensors like `tensor` (its device and dtype decide).

    Raises RuntimeError if an override asks for a backend that cannot run here, and for CUDA tensors while
    `TRITON_INTERPRET=1` is set.
    """
    overrides = _overrides.get()
    chosen = (_environment() if overrides is None else overrides).get(op)
    return _implementation(op, tensor.device.type, tensor.dtype, chosen)


@contextmanager
def use_backend(**choices: str) -> Iterator[None]:
    """Run ops on named backends inside the block: `with use_backend(tree_attention="reference"): ...`."""
    current = _overrides.get()
    base = _environment() if current is None else current
    token = _overrides.set({**base, **_validated(choices, "use_backend")})
    try:
        yield
    finally:
        _overrides.reset(token)


def unavailable(op: str, backend: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why `backend` cannot run `op` on tensors of this device and dtype; None if it can."""
    return _missing(op, backend, device.type, dtype)


def refresh() -> None:
    """Forget every cached choice and read `SPROUT_KERNELS` and `TRITON_INTERPRET` again."""
    _environment.cache_clear()
    _implementation.cache_clear()
    _load.cache_clear()
    _warn_once.cache_clear()


def available(devices: tuple[str, ...] = ("cpu", "cuda")) -> list[OpStatus]:
    """For every op and device: the backend that float32 tensors get, and why the others cannot run."""
    return [_status(op, device) for op in OPS for device in devices]


def _status(op: str, device: str) -> OpStatus:
    if device == "cuda" and not torch.cuda.is_available():
        return OpStatus(op, device, None, {backend: "no CUDA device" for backend in PRIORITY["cuda"]})
    missing = {backend: _missing(op, backend, device, torch.float32) for backend in BACKENDS}
    requested = (_overrides.get() or _environment()).get(op)
    candidates = (requested,) if requested else PRIORITY[device]
    chosen = next((backend for backend in candidates if missing[backend] is None), None)
    return OpStatus(op, device, chosen, {name: why for name, why in missing.items() if why is not None})


@cache
def _implementation(op: str, device: str, dtype: torch.dtype, requested: str | None) -> Callable[..., Any]:
    if device == "cuda" and interpreting():
        raise RuntimeError(f"{op}: TRITON_INTERPRET=1 cannot be mixed with CUDA tensors; unset it")
    if requested is not None:
        why = _missing(op, requested, device, dtype)
        if why is not None:
            raise RuntimeError(f"{op}: backend '{requested}' cannot run on {device} {dtype}: {why}")
        return _function(op, requested)
    for backend in PRIORITY.get(device, ("torch", "reference")):
        why = _missing(op, backend, device, dtype)
        if why is None:
            return _function(op, backend)
        if _exists(op, backend) and why == _load(op, backend):
            _warn_once(backend, why)
    raise RuntimeError(f"{op}: no backend can run on {device} {dtype}")


def _missing(op: str, backend: str, device: str, dtype: torch.dtype) -> str | None:
    """Why `backend` cannot run `op` on such tensors; None if it can."""
    if not _exists(op, backend):
        return "not implemented"
    if backend == "triton" and device != "cuda" and not interpreting():
        return "needs CUDA tensors, or TRITON_INTERPRET=1"
    if backend == "triton" and dtype not in TRITON_DTYPES:
        return f"supports {', '.join(map(str, TRITON_DTYPES))} only"
    if backend == "native" and device != "cpu":
        return "needs CPU tensors"
    if backend == "native" and dtype not in (dtypes := NATIVE_DTYPES.get(op, (torch.float32,))):
        return f"supports {', '.join(map(str, dtypes))} only"
    return _load(op, backend)


@cache
def _load(op: str, backend: str) -> str | None:
    """Import a backend; the reason if its libraries are missing."""
    try:
        import_module(_module(op, backend))
    except ImportError as error:
        built = "the native library is not built, reinstall without SPROUT_NO_NATIVE: "
        return f"{built if backend == 'native' else ''}{error}"
    return None


def _function(op: str, backend: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(import_module(_module(op, backend)), op)
    return function


def _module(op: str, backend: str) -> str:
    return f"sprout.kernels.{_folder(op)}.{backend}"


def _folder(op: str) -> str:
    return op.rstrip("_")


def _exists(op: str, backend: str) -> bool:
    return (Path(__file__).parent / _folder(op) / f"{backend}.py").is_file()


@cache
def _warn_once(backend: str, why: str) -> None:
    warnings.warn(f"{backend} kernels are unavailable, slower ones run instead: {why}", stacklevel=5)


@cache
def _environment() -> Mapping[str, str]:
    text = os.environ.get("SPROUT_KERNELS", "")
    entries = [entry.split("=", 1) for entry in text.split(",") if entry.strip()]
    if any(len(entry) != 2 for entry in entries):
        raise ValueError(f"SPROUT_KERNELS must look like 'op=backend,op=backend', not '{text}'")
    return _validated({op.strip(): backend.strip() for op, backend in entries}, "SPROUT_KERNELS")


def _validated(choices: Mapping[str, str], source: str) -> Mapping[str, str]:
    for op, backend in choices.items():
        if op not in OPS:
            raise ValueError(f"{source}: unknown op '{op}'; ops are {', '.join(OPS)}")
        if backend not in BACKENDS:
            raise ValueError(f"{source}: unknown backend '{backend}'; backends are {', '.join(BACKENDS)}")
    return choices
