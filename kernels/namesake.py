"""Hugging Face has a package named `kernels` too, and transformers imports it.

This folder would stand in its way wherever the checkout's root is on sys.path: in `python -m` and
`torchrun -m` started there, in a script that lies there.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def give_way(init_file: str) -> None:
    """Put the next package `kernels` on sys.path, if there is one, in the place of that of `init_file`."""
    root = Path(init_file).resolve().parents[1]
    spec = PathFinder.find_spec("kernels", [entry for entry in sys.path if Path(entry).resolve() != root])
    if spec is not None and spec.loader is not None:
        sys.modules["kernels"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["kernels"])
