"""Scripted episodes as turns to learn from: a tiny base model's training material, and Stage 1's replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sprout.engine.chat import ChatFormat
from sprout.engine.forest import Turn
from sprout.engine.generator import Completion
from sprout.engine.rng import derive_key
from sprout.seed.analyzer.prompt import skill_turn, view_of
from sprout.seed.conversation import Conversation
from sprout.seed.envs.lessons import batch
from sprout.seed.envs.search.analyzer import analyze
from sprout.seed.envs.search.expert import demonstrate
from sprout.seed.envs.search.response import format_response
from sprout.seed.episode import Episode, Task
from sprout.seed.schema import RolloutSection
from sprout.seed.trajectory import Skill, Trajectory

if TYPE_CHECKING:
    from sprout.seed.envs.search.env import SearchEnv


def lesson(
    env: SearchEnv,
    chat: ChatFormat,
    layout: RolloutSection,
    *,
    seed: int,
    index: int,
    episodes: int,
    transcripts: int,
    reports: int = 0,
) -> list[Turn]:
    """Turns of batch `index`: `episodes` played by the expert, every other one with its own hindsight skill
    in the context; `transcripts` + `reports` pairs of an episode and its skill, every other one a failure.

    A pure function of its arguments and the environment's data, so a resumed run sees the same batches.
    """

    def play(item: int) -> list[Turn]:
        trajectory = _won(env, chat, layout, derive_key(seed, "episode", item) % 2**31)
        return _acting(trajectory, chat, layout, skill=_skill(trajectory).text if item % 2 else "")

    def analysis(item: int) -> list[Turn]:
        played = _lost if item % 2 else _won
        trajectory = played(env, chat, layout, derive_key(seed, "transcript", item) % 2**31)
        return [skill_turn(trajectory, _skill(trajectory), chat, env.analyzer_instructions)]

    analyses = transcripts + reports
    return batch(play, analysis, layout, index=index, episodes=episodes, analyses=analyses)


def _won(env: SearchEnv, chat: ChatFormat, layout: RolloutSection, seed: int) -> Trajectory:
    return _played(env, chat, layout, seed, [turn.response for turn, _ in demonstrate(env, "train", seed)])


def _lost(env: SearchEnv, chat: ChatFormat, layout: RolloutSection, seed: int) -> Trajectory:
    """The expert's searches, and never an answer."""
    responses = [turn.response for turn, info in demonstrate(env, "train", seed) if info["kind"] == "search"]
    again = responses or [format_response("search", "what is asked", "I have to look this up.")]
    return _played(env, chat, layout, seed, [*again, *[again[-1]] * (env.max_turns - len(again))])


def _played(
    env: SearchEnv, chat: ChatFormat, layout: RolloutSection, seed: int, responses: Sequence[str]
) -> Trajectory:
    """The trajectory of an episode with these responses."""
    episode = Episode(env, chat, layout, name="search", task=Task("train", seed), member=0, update=0)
    for response in responses:
        ids = np.asarray(chat.encode(response), np.int64)
        episode.advance(Completion(None, ids, np.zeros(len(ids), np.float32), "stop"))
    assert episode.done, "the responses do not end the episode"
    return episode.trajectory


def _acting(trajectory: Trajectory, chat: ChatFormat, layout: RolloutSection, skill: str) -> list[Turn]:
    talk = Conversation.of(trajectory, chat, layout)
    return [
        Turn(talk.teacher(skill, number), np.asarray(turn.action, np.int64))
        for number, turn in enumerate(trajectory.turns)
    ]


def _skill(trajectory: Trajectory) -> Skill:
    found = analyze(view_of(trajectory))
    return Skill(text=found["episode_skill"], summary=found["episode_summary"], analyzer="scripted")
