"""Demonstrations and reading questions as turns: the base model's training material, and Stage 1's replay."""

import numpy as np

from sprout.engine.chat import ChatFormat
from sprout.engine.forest import Turn
from sprout.seed.conversation import Conversation, action_ids
from sprout.seed.envs.household.demonstrations import (
    Demonstration,
    DemonstrationMix,
    Labels,
    demonstration,
)
from sprout.seed.envs.household.reading import ReadingQuestion, reading_questions, reading_reports
from sprout.seed.envs.household.text import SYSTEM_PROMPT
from sprout.seed.schema import RolloutSection


def demonstration_turns(
    episode: Demonstration, chat: ChatFormat, layout: RolloutSection, system: str = SYSTEM_PROMPT
) -> list[Turn]:
    """Every command worth imitating, after the ordinary contexts and after the contexts with a skill."""
    talk = Conversation(chat, layout, task=episode.task, system=system)
    turns = []
    for index, step in enumerate(episode.steps):
        talk.observe(step.observation_before)
        turns += _labelled(talk.student(), step.labels, chat)
        for branch in episode.branches:
            if branch.turn_index == index:
                turns += _labelled(talk.teacher(branch.skill), branch.labels, chat)
        talk.act(action_ids(chat, step.action))
    return turns


def question_turn(item: ReadingQuestion, chat: ChatFormat) -> Turn:
    """The transcript and the question as one user message, the answer as the action."""
    context = chat.conversation([("user", f"{item.transcript}\nquestion : {item.question}")])
    return _turn(np.asarray([*context, *chat.opening("assistant")], np.int64), action_ids(chat, item.answer))


def lesson(
    chat: ChatFormat,
    layout: RolloutSection,
    *,
    seed: int,
    index: int,
    episodes: int,
    transcripts: int,
    reports: int = 0,
    mix: DemonstrationMix | None = None,
    system: str = SYSTEM_PROMPT,
) -> list[Turn]:
    """Turns of batch `index`, questions about each transcript included.

    A pure function of its arguments, so a resumed run sees the same batches.
    """
    turns: list[Turn] = []
    for item in range(index * episodes, (index + 1) * episodes):
        turns += demonstration_turns(demonstration(seed, item, mix), chat, layout, system)
    for item in range(index * transcripts, (index + 1) * transcripts):
        turns += [question_turn(question, chat) for question in reading_questions(seed, item)]
    for item in range(index * reports, (index + 1) * reports):
        turns += [question_turn(question, chat) for question in reading_reports(seed, item)]
    return turns


def _labelled(context: np.ndarray, labels: Labels, chat: ChatFormat) -> list[Turn]:
    """One turn per label, weighted by its share."""
    return [_turn(context, action_ids(chat, command), share) for command, share in labels]


def _turn(context: np.ndarray, action: list[int], weight: float = 1.0) -> Turn:
    return Turn(context, np.asarray(action, np.int64), mask=np.full(len(action), weight, np.float32))
