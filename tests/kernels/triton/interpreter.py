"""Runs Triton kernels in Triton's interpreter, in a process that also compiles them.

`TRITON_INTERPRET=1` acts where `@triton.jit` decorates, Triton's own `tl.sum` included, so the usual way
needs a process of its own. Here every call of an already decorated function is handed to the interpreter
instead; nothing has to be imported twice, and nothing stays behind.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from triton.runtime.interpreter import InterpretedFunction, _patch_lang
from triton.runtime.jit import JITFunction

from sprout.kernels.dispatch import refresh


@contextmanager
def interpreting() -> Iterator[None]:
    """Inside the block Triton kernels run on CPU tensors, and dispatch accepts overrides that ask for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setattr(JITFunction, "run", _launch)
        patch.setattr(JITFunction, "__call__", _call)
        refresh()
        yield
    refresh()


def _launch(kernel: JITFunction, *args: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> None:
    _interpreted(kernel.fn).run(*args, grid=grid, warmup=warmup, **options)


def _call(function: JITFunction, *args: Any, **kwargs: Any) -> Any:
    # Not `InterpretedFunction.__call__`, which patches triton.language and leaves it so.
    scope = _patch_lang(function.fn)
    try:
        return _interpreted(function.fn).rewrite()(*args, **kwargs)
    finally:
        scope.restore()


@cache
def _interpreted(function: Callable[..., Any]) -> InterpretedFunction:
    return InterpretedFunction(function)
