"""Runs Triton kernels in Triton's interpreter, in a process that also compiles them.

`TRITON_INTERPRET=1` acts where `@triton.jit` decorates, Triton's own `tl.sum` included, so the usual way
needs a process of its own. Here every call of an already decorated function is handed to the interpreter
instead; nothing has to be imported twice, and nothing stays behind.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpretedFunction
from triton.runtime.jit import JITFunction

from sprout.kernels.dispatch import refresh


@contextmanager
def interpreting() -> Iterator[None]:
    """Inside the block Triton kernels run on CPU tensors, and dispatch accepts overrides that ask for it."""
    # Patched once for the block; the interpreter would do it at every call of a function.
    language = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            patch.setattr(interpreter, "_patch_lang", lambda function: interpreter._LangPatchScope())
            patch.setattr(JITFunction, "run", _launch)
            patch.setattr(JITFunction, "__call__", _call)
            # It also writes storages back, on the CPU onto themselves: slow, and sparse memory fills up.
            patch.setattr(GridExecutor, "_restore_args_dev", lambda *args: None)
            refresh()
            yield
    finally:
        language.restore()
        refresh()


def _launch(kernel: JITFunction, *args: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> None:
    _interpreted(kernel.fn).run(*args, grid=grid, warmup=warmup, **options)


def _call(function: JITFunction, *args: Any, **kwargs: Any) -> Any:
    return _interpreted(function.fn)(*args, **kwargs)


@cache
def _interpreted(function: Callable[..., Any]) -> InterpretedFunction:
    return InterpretedFunction(function)
