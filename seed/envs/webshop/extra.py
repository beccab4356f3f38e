"""The libraries of the extra `webshop`, imported when they are first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

PACKAGES = {"bm25s": "bm25s", "Stemmer": "PyStemmer", "rapidfuzz": "rapidfuzz"}


def library(module: str) -> Any:
    """A module of the extra. Raises ImportError, naming the extra, if its package is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        package = PACKAGES[module.partition(".")[0]]
        raise ImportError(
            f"webshop needs {package}, which is not installed: pip install 'sprout-rl[webshop]'"
        ) from error
