"""One live episode: an environment, the conversation with it, and the record that becomes a trajectory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from sprout.engine.chat import ChatFormat
from sprout.engine.generator import Completion
from sprout.seed.conversation import Conversation
from sprout.seed.schema import RolloutSection
from sprout.seed.trajectory import Ids, Trajectory, TurnRecord, split_context
from sprout.seed.workers import WorkerEnvironment, WorkerError


@dataclass(frozen=True)
class Task:
    """What fixes an episode's start: a seed of one of the environment's splits. `group` names its group."""

    split: str
    seed: int

    @property
    def group(self) -> str:
        return f"{self.split}-{self.seed}"

    @property
    def start(self) -> dict[str, Any]:
        """Keyword arguments of an environment's `reset`."""
        return {"seed": self.seed, "options": {"split": self.split}}


class EpisodeError(Exception):
    """An environment raised, died or hung; the episode says nothing about the policy."""


class Episode:
    """Plays one member of a task's group. `context` is what the next response is to be sampled after.

    `skill(trajectory so far)` is asked before every turn; its text is in that turn's context and never in the
    history. The empty text means no skill.
    """

    def __init__(
        self,
        environment: gymnasium.Env,
        chat: ChatFormat,
        layout: RolloutSection,
        *,
        name: str,
        task: Task,
        member: int,
        update: int,
        max_turns: int | None = None,
        skill: Callable[[Trajectory], str] | None = None,
    ) -> None:
        self.environment = environment
        self._chat = chat
        self._skill = skill
        self._max_turns = math.inf if max_turns is None else max_turns
        self._observation, info = guarded(environment.reset, **task.start)
        self.trajectory = Trajectory(
            update=update, group=task.group, member=member, env=name, split=task.split, seed=task.seed,
            task=info["task"], family=info["family"], system=getattr(environment, "system_prompt", ""),
            turns=[], reward=0.0, success=False,
        )  # fmt: skip
        self._conversation = Conversation(
            chat, layout, task=self.trajectory.task, system=self.trajectory.system
        )
        self._previous: Ids = np.empty(0, np.int64)
        self.done = False
        self._begin_turn()

    @property
    def turn(self) -> int:
        """Number of the turn that is to be sampled."""
        return len(self.trajectory.turns)

    def begin(self, completion: Completion) -> None:
        """Let an environment in a worker start on a response already; `advance` takes what comes of it."""
        if isinstance(self.environment, WorkerEnvironment):
            self.environment.step_async(self._chat.decode(completion.ids.tolist()))

    def advance(self, completion: Completion) -> None:
        """Step the environment with a response. Raises EpisodeError if the environment does."""
        response = self._chat.decode(completion.ids.tolist())
        observation, reward, terminated, truncated, info = guarded(self.environment.step, response)
        self._record(completion, response, reward, info)
        self._conversation.act(completion.ids.tolist())
        self._observation = observation
        self.trajectory.success = bool(info["success"])
        if terminated or truncated or self.turn >= self._max_turns:
            self.finish(truncated=not terminated)
        else:
            self._begin_turn()

    def finish(self, truncated: bool) -> None:
        """End the episode after the last observation."""
        self.trajectory.truncated = truncated
        self.trajectory.final_observation = self._observation
        self.done = True

    def _begin_turn(self) -> None:
        self._conversation.observe(self._observation)
        self._shown = self._skill(self.trajectory) if self._skill else ""
        self.context = self._conversation.teacher(self._shown)

    def _record(self, completion: Completion, response: str, reward: Any, info: dict[str, Any]) -> None:
        shared, tail = split_context(self.context, self._previous)
        self._previous = np.concatenate([self.context, completion.ids])
        valid, stopped = bool(info["valid"]), completion.finished == "stop"
        turn = TurnRecord(
            observation=self._observation, response=response, command=info.get("command", response),
            shared=shared, tail=tail, action=completion.ids.tolist(), logprobs=completion.logprobs.tolist(),
            mask=[True] * len(completion.ids), finished="stop" if stopped else "length",
            well_formed=stopped and bool(info.get("well_formed", valid)), admissible=valid,
            reward=_finite(reward) or 0.0, prompt_skill=self._shown,
        )  # fmt: skip
        self.trajectory.turns.append(turn)
        total, known = self.trajectory.reward, _finite(reward)
        self.trajectory.reward = None if total is None or known is None else total + known


def _finite(reward: Any) -> float | None:
    return float(reward) if reward is not None and math.isfinite(reward) else None


def guarded(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What an environment answers. Raises EpisodeError for whatever it raises."""
    try:
        return call(*args, **kwargs)
    except WorkerError as failure:
        raise EpisodeError(str(failure)) from failure
    except Exception as error:
        raise EpisodeError(f"{type(error).__name__}: {error}") from error
