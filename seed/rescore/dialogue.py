"""Someone else's episode as texts, and as the trajectory it would have been here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sprout.engine.chat import ChatFormat
from sprout.seed.conversation import Conversation
from sprout.seed.schema import RolloutSection
from sprout.seed.trajectory import Ids, Skill, Trajectory, TurnRecord, split_context


@dataclass(frozen=True)
class Step:
    """What was seen, what was said, and whether the sayer ended it itself (with the stop token)."""

    observation: str
    response: str
    stopped: bool = True


@dataclass(frozen=True)
class Dialogue:
    """One stored episode. `success` and `reward` are None where the file does not tell."""

    id: str
    env: str
    steps: Sequence[Step]
    system: str = ""
    family: str = "all"
    group: str = ""
    final_observation: str = ""
    success: bool | None = None
    reward: float | None = None
    skill: str = ""

    def trajectory(self, chat: ChatFormat, layout: RolloutSection) -> Trajectory:
        """The same episode with ids; what the sampler's log-probs were is not known (NaN)."""
        outcome = self.success if self.success is not None else bool(self.reward and self.reward > 0)
        reward = self.reward if self.reward is not None or self.success is None else float(self.success)
        skill = Skill(text=self.skill, analyzer="file", tokens=len(chat.encode(self.skill)))
        return Trajectory(
            update=0, group=self.group or self.id, member=0, env=self.env, split="stored", seed=0,
            task="", family=self.family, system=self.system, turns=self._turns(chat, layout),
            final_observation=self.final_observation, reward=reward, success=outcome,
            skill=skill if self.skill else None,
        )  # fmt: skip

    def _turns(self, chat: ChatFormat, layout: RolloutSection) -> list[TurnRecord]:
        conversation = Conversation(chat, layout, task="", system=self.system)
        previous: Ids = np.empty(0, np.int64)
        turns = []
        for step in self.steps:
            conversation.observe(step.observation)
            context = conversation.student()
            action = chat.encode(step.response) + ([chat.stop_id] if step.stopped else [])
            if not action:
                raise ValueError("an assistant message is empty; leave it out")
            shared, tail = split_context(context, previous)
            previous = np.concatenate([context, np.asarray(action, np.int64)])
            conversation.act(action)
            turn = TurnRecord(
                observation=step.observation, response=step.response, command="", shared=shared, tail=tail,
                action=action, logprobs=[float("nan")] * len(action), mask=[True] * len(action),
                finished="stop", well_formed=True, admissible=True,
            )  # fmt: skip
            turns.append(turn)
        return turns
