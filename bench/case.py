"""What `sprout bench kernels` measures: an op at one size, by every provider that can run it.

A provider makes a `Program`, a function with its own inputs in the layout it likes best. One that cannot run
raises `UnavailableError`; the reason becomes its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor

from sprout.bench.measure import Run
from sprout.kernels.dispatch import unavailable, use_backend

Phase = Literal["forward", "backward", "full"]
Scale = Literal["quick", "cpu", "cuda"]
FAST_BACKENDS = ("triton", "native", "torch")
EAGER, COMPILED = "torch eager", "torch.compile"


class UnavailableError(Exception):
    """A provider that cannot run here, and why."""


@dataclass(frozen=True)
class Setting:
    """Where and how large: `scale` chooses the sizes of the sweep, `compile` allows torch.compile."""

    device: torch.device
    dtype: torch.dtype
    scale: Scale
    compile: bool

    def random(self, *shape: int, grad: bool = True, dtype: torch.dtype | None = None) -> Tensor:
        """Normal numbers; a leaf that gets a gradient unless told otherwise."""
        return torch.randn(*shape, device=self.device, dtype=dtype or self.dtype).requires_grad_(grad)

    def integers(self, limit: int, *shape: int) -> Tensor:
        return torch.randint(0, limit, shape, device=self.device)


@dataclass(frozen=True)
class Work:
    """What one call has to do at least; `formula` says what was counted."""

    flops: float
    bytes: float
    formula: str

    def seconds_at(self, flops_per_s: float, bytes_per_s: float) -> float:
        """Time at the machine's ceilings."""
        return max(self.flops / flops_per_s, self.bytes / bytes_per_s)


@dataclass(frozen=True)
class Program:
    """A function and what it is called with; gradients flow to the inputs that require them."""

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]

    def prepare(self, phase: Phase) -> Run:
        """The call to time. Forward runs without autograd, as scoring does; full is what training pays."""
        if phase == "forward":
            return torch.no_grad()(partial(self.function, *self.inputs))
        if not any(x.requires_grad for x in self.inputs):
            raise UnavailableError("has no backward here")
        if phase == "backward":
            return partial(self._gradients, self._differentiable(), retain_graph=True)
        return self._full

    def _full(self) -> tuple[Tensor, ...]:
        outputs = self._differentiable()
        return (*outputs, *self._gradients(outputs))

    def _gradients(self, outputs: list[Tensor], retain_graph: bool = False) -> tuple[Tensor, ...]:
        leaves = [x for x in self.inputs if x.requires_grad]
        return torch.autograd.grad(outputs, leaves, self._upstream, retain_graph=retain_graph)

    def _differentiable(self) -> list[Tensor]:
        outputs = self.function(*self.inputs)
        return [x for x in tensors_of(outputs) if x.requires_grad]

    @cached_property
    def _upstream(self) -> list[Tensor]:
        return [torch.randn_like(x) for x in self._differentiable()]


Make = Callable[[], Program]


@dataclass(frozen=True)
class Case:
    """One op at one size. `work` has an entry for each phase that exists; `shape` names the size."""

    op: str
    shape: Mapping[str, str | int]
    dtype: torch.dtype
    work: Mapping[Phase, Work]
    providers: Mapping[str, Make]
    baseline: str = EAGER  # the provider that speed-ups are over

    @property
    def label(self) -> str:
        return " ".join(f"{name} {value}" for name, value in self.shape.items())


def ours(op: str, function: Callable[..., Any], *inputs: Tensor) -> dict[str, Make]:
    """Our op on each fast backend."""
    return {f"sprout {name}": partial(_on_backend, op, name, function, inputs) for name in FAST_BACKENDS}


def _on_backend(op: str, backend: str, function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Program:
    if why := unavailable(op, backend, inputs[0].device, inputs[0].dtype):
        raise UnavailableError(why)

    def run(*arguments: Tensor) -> Any:
        with use_backend(**{op: backend}):
            return function(*arguments)

    return Program(run, inputs)


def plain(function: Callable[..., Any], *inputs: Tensor) -> Make:
    """A provider without conditions."""
    return lambda: Program(function, inputs)


def compiled(setting: Setting, function: Callable[..., Any], *inputs: Tensor) -> Make:
    """`function` through torch.compile, for exactly these shapes."""

    def make() -> Program:
        require_compiler(setting)
        return Program(torch.compile(function, dynamic=False), inputs)

    return make


def require_compiler(setting: Setting) -> None:
    if not setting.compile:
        raise UnavailableError("not asked for: --compile")
    if why := _broken_compiler(setting.device):
        raise UnavailableError(f"torch.compile fails here: {why}")


@cache
def _broken_compiler(device: torch.device) -> str | None:
    """Why a trivial function does not compile; None if it does. Graphs must survive repeated backwards."""
    setattr(import_module("torch._functorch.config"), "donated_buffer", False)  # noqa: B010
    try:
        torch.compile(lambda x: x + 1)(torch.ones(8, device=device))
    except Exception as error:
        return first_line(error)
    return None


def library(module: str) -> Any:
    """An optional library, imported when a provider needs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UnavailableError(f"cannot import {module}: {first_line(error)}") from error


def cuda_only(setting: Setting) -> None:
    if setting.device.type != "cuda":
        raise UnavailableError("needs a CUDA device")


def first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:160]


def tensors_of(outputs: Any) -> Iterator[Tensor]:
    """The tensors among what a function returned: one, several or none."""
    for x in outputs if isinstance(outputs, tuple | list) else [outputs]:
        if isinstance(x, Tensor):
            yield x
