"""The ids a policy sees at each turn of an episode, with and without a skill.

An episode is one chat: system, then user (task and observation), assistant (action), user (observation), ...
All layouts come from the same pieces; they differ in where the chat starts and where the skill block goes:

    history_layout   append         the chat from the first turn on: every context extends the one before it
                     window         only the last `history_turns` (observation, action) pairs, task on top
    skill_placement  before_action  a user message of its own, right before the assistant's opening
                     after_task     text inside the first user message, right after the task line

Text is encoded piece by piece, so the ids outside the skill block are the same in both contexts whatever the
tokenizer merges, and sampled ids are reused verbatim: nothing is decoded and encoded again. An empty skill
gives the ordinary context, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sprout.engine.chat import ChatFormat
from sprout.seed.schema import RolloutSection
from sprout.seed.trajectory import Ids, Trajectory


class Conversation:
    """Contexts of one episode. Feed it `observe`, `act`, `observe`, ...; ask for the context of any turn."""

    def __init__(self, chat: ChatFormat, layout: RolloutSection, *, task: str, system: str = "") -> None:
        if chat.needs_system and not system:
            raise ValueError("the chat template adds a system prompt of its own; give one explicitly")
        self._chat = chat
        self._layout = layout
        head = chat.message("system", system) if system else []
        self._before_task = [*chat.bos, *head, *chat.opening("user")]
        self._task = chat.encode(f"{task}\n") if task else []
        self._observations: list[list[int]] = []
        self._actions: list[list[int]] = []

    @classmethod
    def of(cls, trajectory: Trajectory, chat: ChatFormat, layout: RolloutSection) -> Conversation:
        """The conversation of a finished episode."""
        conversation = cls(chat, layout, task=trajectory.task, system=trajectory.system)
        for turn in trajectory.turns:
            conversation.observe(turn.observation)
            conversation.act(turn.action)
        return conversation

    def observe(self, text: str) -> None:
        """The environment's text before the next action."""
        assert len(self._observations) == len(self._actions), "two observations in a row"
        self._observations.append(self._chat.encode(text))

    def act(self, ids: Iterable[int]) -> None:
        """The ids sampled for the present turn, with the stop id if the policy produced it."""
        assert len(self._actions) == len(self._observations) - 1, "an action needs an observation before it"
        self._actions.append(list(ids))

    def __len__(self) -> int:
        """Turns so far: observations seen."""
        return len(self._observations)

    def student(self, turn: int = -1) -> Ids:
        """h: the ordinary context of a turn (default: the present one)."""
        return self.teacher("", turn)

    def teacher(self, skill: str, turn: int = -1) -> Ids:
        """h with s: the context of a turn with the skill in its place."""
        turn = range(len(self))[turn]
        block = self._layout.skill_template.replace("{skill}", skill) if skill else ""
        early = block if self._layout.skill_placement == "after_task" else ""
        late = block if self._layout.skill_placement == "before_action" else ""
        return np.asarray([*self._history(turn, early), *self._opening(late)], np.int64)

    def history(self, turn: int = -1) -> Ids:
        """h without the assistant's opening: the part that a before_action skill leaves untouched."""
        return np.asarray(self._history(range(len(self))[turn], ""), np.int64)

    def _history(self, turn: int, block: str) -> list[int]:
        start = 0 if self._layout.history_layout == "append" else max(0, turn - self._layout.history_turns)
        ids = [*self._before_task, *self._task]
        if block:
            ids += self._chat.encode(f"{block}\n")
        for index in range(start, turn + 1):
            ids += self._observations[index] if index == start else self._user(self._observations[index])
            ids += self._chat.closing("user") if index == start else []
            if index < turn:
                ids += [*self._chat.opening("assistant"), *self._closed(self._actions[index])]
        return ids

    def _opening(self, block: str) -> list[int]:
        skill = self._chat.message("user", block) if block else []
        return [*skill, *self._chat.opening("assistant")]

    def _user(self, ids: Sequence[int]) -> list[int]:
        return [*self._chat.opening("user"), *ids, *self._chat.closing("user")]

    def _closed(self, action: Sequence[int]) -> list[int]:
        """An action as it stands in the history; one that was cut by length gets the template's closing."""
        closing = self._chat.closing("assistant")
        stopped = bool(action) and action[-1] == self._chat.stop_id
        return [*action, *(closing[1:] if stopped else closing)]


def recorded_contexts(trajectory: Trajectory, conversation: Conversation) -> list[Ids]:
    """The context of every turn as it was recorded.

    Raises ValueError, naming the turn, for one that differs from what `conversation` gives.
    """
    contexts = trajectory.contexts()
    for number, (turn, context) in enumerate(zip(trajectory.turns, contexts, strict=True)):
        if not np.array_equal(conversation.teacher(turn.prompt_skill, number), context):
            raise ValueError(
                f"trajectory {trajectory.id}, turn {number}: its context is not the one that this chat "
                "format, rollout.history_layout and rollout.history_turns give; use the tokenizer and the "
                "settings it was collected with"
            )
    return contexts


def action_ids(chat: ChatFormat, text: str) -> list[int]:
    """The ids of a response written by someone else (a demonstration), ending in the stop id."""
    return [*chat.encode(text), chat.stop_id]
