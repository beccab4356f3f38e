"""An environment played by a person: it shows the text that a policy gets, and reads a command a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import yaml

from sprout.engine.terminal import say
from sprout.seed.envs import environment_class, make_env

QUIT = "quit"
MENDABLE = (ValueError, OSError, ImportError)


def play(
    name: str,
    seed: int,
    split: str,
    options: dict[str, Any],
    *,
    ask: Callable[[str], str] = input,
    say: Callable[[str], object] = say,
) -> None:
    """One episode of the environment registered as `name`, until it ends, or `quit`, or the input does.

    Where responses can have a plain format they do unless `options` gives another. Raises ValueError for a
    wrong name, option or split, and RuntimeError if the environment raises anything else than errors that its
    user can mend.
    """
    if "plain" in getattr(environment_class(name), "formats", ()):
        options = {"format": "plain"} | options
    environment: Any = make_env(name, **options)
    try:
        _episode(environment, seed, split, ask, say)
    finally:
        environment.close()


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value` with YAML values. Raises ValueError for anything else."""
    options = {}
    for pair in pairs:
        key, found, value = pair.partition("=")
        if not found or not key.isidentifier():
            raise ValueError(f"option {pair!r}: write key=value")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"option {pair!r}: {value!r} is not a YAML value; quote it") from None
    return options


def _episode(
    environment: Any, seed: int, split: str, ask: Callable[[str], str], say: Callable[[str], object]
) -> None:
    observation, info = _guarded(environment.reset, seed=seed, options={"split": split})
    system = getattr(environment, "system_prompt", "")
    if system:
        say(f"{system}\n")
    say(f"Task ({info['family']}): {info['task']}\n({QUIT} or Ctrl-D ends)")
    total, turns, ended = 0.0, 0, False
    while not ended:
        say(f"\n{observation}")
        if commands := info.get("admissible_commands"):
            say(f"Commands: {', '.join(commands)}")
        command = _next(ask, say)
        if command is None:
            say(f"ended after {_turns(turns)}, reward {total:g}")
            return
        observation, reward, terminated, truncated, info = _guarded(environment.step, command)
        total, turns, ended = total + float(reward), turns + 1, terminated or truncated
        say(f"reward {float(reward):g}{'' if info['valid'] else ' (not possible)'}")
    say(f"\n{observation}")
    outcome = "success" if info["success"] else "no success" if terminated else "out of turns"
    say(f"done: {outcome} after {_turns(turns)}, reward {total:g}")


def _guarded(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What an environment answers; its errors fit one line."""
    try:
        return call(*args, **kwargs)
    except MENDABLE:
        raise
    except Exception as error:
        raise RuntimeError(f"the environment raised {type(error).__name__}: {error}") from error


def _next(ask: Callable[[str], str], say: Callable[[str], object]) -> str | None:
    """The next line that is not blank; None when the person has enough."""
    while True:
        try:
            line = ask("> ").strip()
        except EOFError:
            say("")
            return None
        if line.lower() == QUIT:
            return None
        if line:
            return line


def _turns(number: int) -> str:
    return f"{number} turn{'s' * (number != 1)}"
