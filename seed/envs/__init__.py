"""Environments: text-in, text-out `gymnasium.Env`s found by the entry point group `sprout.environments`."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import gymnasium

GROUP = "sprout.environments"


def known_environments() -> dict[str, EntryPoint]:
    """Registered environments by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def environment_class(name: str) -> Any:
    """What is registered as `name`. Raises ValueError for an unknown name."""
    known = known_environments()
    if name not in known:
        raise ValueError(f"unknown environment {name!r}; known: {', '.join(sorted(known)) or 'none'}")
    return known[name].load()


def make_env(name: str, **options: Any) -> gymnasium.Env:
    """Construct the environment registered as `name`; `options` go to its constructor.

    Raises ValueError for an unknown name or an option that the environment does not take.
    """
    constructor = environment_class(name)
    try:
        return constructor(**options)
    except TypeError as error:
        raise ValueError(f"environment {name!r} does not accept {options}: {error}") from error
