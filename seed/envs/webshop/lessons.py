"""Expert play and analyses of it as turns: what a small model learns to act and to write skills from."""

from __future__ import annotations

from random import Random

import numpy as np

from sprout.engine.chat import ChatFormat
from sprout.engine.forest import Turn
from sprout.seed.analyzer.prompt import SKILL, SUMMARY, format_answer, view_prompt_ids
from sprout.seed.analyzer.transcript import TrajectoryView, TranscriptStep
from sprout.seed.conversation import Conversation, action_ids
from sprout.seed.envs.lessons import batch
from sprout.seed.envs.webshop.analyzer import analyze
from sprout.seed.envs.webshop.env import WebshopEnv
from sprout.seed.envs.webshop.expert import Noise, demonstrate
from sprout.seed.schema import RolloutSection

_SKILL_SHARE = 0.25


def lesson(
    env: WebshopEnv,
    chat: ChatFormat,
    layout: RolloutSection,
    *,
    seed: int,
    index: int,
    episodes: int,
    transcripts: int,
    reports: int = 0,
) -> list[Turn]:
    """Turns of batch `index`: `episodes` played by the expert, `transcripts` + `reports` of them analyzed.

    `env` is reset for it. What is longer than rollout.max_context_tokens is left out: it cannot occur in a
    rollout either. A pure function of its arguments, so a resumed run sees the same batches.
    """
    return batch(
        lambda item: episode_turns(env, seed, item, chat, layout),
        lambda item: [analysis_turn(env, seed, item, chat)],
        layout,
        index=index,
        episodes=episodes,
        analyses=transcripts + reports,
    )


def episode_turns(
    env: WebshopEnv, seed: int, item: int, chat: ChatFormat, layout: RolloutSection
) -> list[Turn]:
    """The good response to every page of an episode, after the ordinary context and at times with a skill."""
    rng = Random(f"webshop episode/{seed}/{item}")
    task = rng.getrandbits(31)
    noise = Noise(wander=rng.uniform(0, 0.2), invalid=rng.uniform(0, 0.1))
    turns: list[Turn] = []
    talk: Conversation | None = None
    for turn, info in demonstrate(env, "train", task, noise):
        if talk is None:
            talk = Conversation(chat, layout, task=str(info["task"]), system=env.system_prompt)
            skill = env.oracle_skill()
        talk.observe(turn.observation)
        turns.append(_turn(talk.student(), turn.good, chat))
        if rng.random() < _SKILL_SHARE:
            turns.append(_turn(talk.teacher(skill), turn.good, chat))
        talk.act(action_ids(chat, turn.response))
    return turns


def analysis_turn(env: WebshopEnv, seed: int, item: int, chat: ChatFormat) -> Turn:
    """The analyzer's prompt about a noisy episode, and what the scripted analyzer says of it."""
    rng = Random(f"webshop analysis/{seed}/{item}")
    noise = Noise(wander=rng.uniform(0, 0.2), invalid=rng.uniform(0, 0.1), forget=rng.uniform(0, 0.4))
    steps = []
    for turn, _ in demonstrate(env, "train", rng.getrandbits(31), noise):
        steps.append(TranscriptStep(turn.observation, turn.response, turn.valid))
    visit = env.visit
    success = visit.score is not None and visit.score.value == 1.0
    view = TrajectoryView(visit.goal.instruction, tuple(steps), success, visit.page.text(None))
    found = analyze(view)
    context = np.asarray(view_prompt_ids(view, chat, env.analyzer_instructions), np.int64)
    return _turn(context, format_answer(found[SUMMARY], found[SKILL]), chat)


def _turn(context: np.ndarray, response: str, chat: ChatFormat) -> Turn:
    return Turn(context, np.asarray(action_ids(chat, response), np.int64))
