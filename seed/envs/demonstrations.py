"""Scripted play of a game that knows its own best move, with as much noise as one likes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

_IMPOSSIBLE = ("jump", "back", "go there", "stop", "help")


class Game(Protocol):
    """What a game brings beside `gymnasium.Env`."""

    system_prompt: str
    analyzer_instructions: dict[str, str]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        ...

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Act."""
        ...

    def expert_command(self) -> str | None:
        """The best command now; None if the episode cannot be won any more."""
        ...

    def respond(self, command: str) -> str:
        """A well-formed response with this command."""
        ...

    def oracle_skill(self) -> str:
        """Advice that wins the episode."""
        ...

    def scripted_analyzer(self, view: Any) -> dict[str, str]:
        """Summary and skill of an episode that is over."""
        ...


@dataclass(frozen=True)
class Noise:
    """Per-turn probabilities of another possible command, helpful or not, and of an impossible one."""

    random: float = 0.0
    invalid: float = 0.0

    def __post_init__(self) -> None:
        if min(self.random, self.invalid) < 0 or self.random + self.invalid > 1:
            raise ValueError(f"noise needs probabilities, not {self}")


@dataclass(frozen=True)
class Demonstration:
    """One turn, and the info and observation that followed.

    `good` is the response without noise; None where the episode cannot be won any more.
    """

    observation: str
    response: str
    good: str | None
    info: dict[str, Any]
    following: str


def demonstrate(env: Game, split: str, seed: int, noise: Noise | None = None) -> Iterator[Demonstration]:
    """Plays one episode with the expert, turn by turn; without noise it is won."""
    noise, rng = noise or Noise(), Random(f"{split}/{seed}")
    observation, info = env.reset(seed=seed, options={"split": split})
    ended = False
    while not ended:
        best, draw = env.expert_command(), rng.random()
        command = best
        if draw < noise.invalid:
            command = rng.choice(_IMPOSSIBLE)
        elif best is None or draw < noise.invalid + noise.random:
            command = rng.choice(info["admissible_commands"])
        assert command is not None
        good = None if best is None else env.respond(best)
        response = env.respond(command)
        following, _, terminated, truncated, info = env.step(response)
        yield Demonstration(observation, response, good, info, following)
        observation, ended = following, terminated or truncated
