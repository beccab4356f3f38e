"""What a small model learns a game from: scripted play, and the scripted analyzer's words about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random

import numpy as np
from transformers import PreTrainedTokenizerFast

from sprout.engine.chat import ChatFormat
from sprout.engine.forest import Turn
from sprout.seed.analyzer.prompt import SKILL, SUMMARY, format_answer, view_prompt_ids
from sprout.seed.analyzer.transcript import TrajectoryView, TranscriptStep
from sprout.seed.conversation import Conversation, action_ids
from sprout.seed.envs.demonstrations import Demonstration, Game, Noise, demonstrate
from sprout.seed.envs.tokenizer import train_tokenizer
from sprout.seed.schema import RolloutSection

_TOKENS, _EPISODES = 512, 100
_SKILL_SHARE = 0.25


def play_tokenizer(env: Game) -> PreTrainedTokenizerFast:
    """Trained on the prompts of `env` and on expert play."""
    return train_tokenizer(_texts(env), _TOKENS)


def lesson(
    env: Game,
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
        lambda item: _episode_turns(env, seed, item, chat, layout),
        lambda item: [_analysis_turn(env, seed, item, chat)],
        layout,
        index=index,
        episodes=episodes,
        analyses=transcripts + reports,
    )


def batch(
    play: Callable[[int], Iterable[Turn]],
    analysis: Callable[[int], Iterable[Turn]],
    layout: RolloutSection,
    *,
    index: int,
    episodes: int,
    analyses: int,
) -> list[Turn]:
    """Batch `index` of two streams of numbered items, less what is longer than rollout.max_context_tokens."""
    turns: list[Turn] = []
    for item in range(index * episodes, (index + 1) * episodes):
        turns += play(item)
    for item in range(index * analyses, (index + 1) * analyses):
        turns += analysis(item)
    return [turn for turn in turns if len(turn.context) + len(turn.action) <= layout.max_context_tokens]


def _episode_turns(
    env: Game, seed: int, item: int, chat: ChatFormat, layout: RolloutSection
) -> Iterator[Turn]:
    """The good response to every turn of an episode, after the ordinary context and at times with a skill."""
    rng = Random(f"episode/{seed}/{item}")
    task, noise = rng.getrandbits(31), Noise(random=rng.uniform(0, 0.2), invalid=rng.uniform(0, 0.1))
    talk: Conversation | None = None
    for turn in demonstrate(env, "train", task, noise):
        talk = talk or Conversation(chat, layout, task=turn.info["task"], system=env.system_prompt)
        talk.observe(turn.observation)
        if turn.good is not None:
            yield _turn(talk.student(), turn.good, chat)
            if rng.random() < _SKILL_SHARE:
                yield _turn(talk.teacher(env.oracle_skill()), turn.good, chat)
        talk.act(action_ids(chat, turn.response))


def _analysis_turn(env: Game, seed: int, item: int, chat: ChatFormat) -> Turn:
    """The analyzer's prompt about a noisy episode, and what the scripted analyzer says of it."""
    rng = Random(f"analysis/{seed}/{item}")
    task, noise = rng.getrandbits(31), Noise(random=rng.uniform(0, 0.5), invalid=rng.uniform(0, 0.1))
    view = view_of(list(demonstrate(env, "train", task, noise)))
    found = env.scripted_analyzer(view)
    context = np.asarray(view_prompt_ids(view, chat, env.analyzer_instructions), np.int64)
    return _turn(context, format_answer(found[SUMMARY], found[SKILL]), chat)


def view_of(turns: list[Demonstration]) -> TrajectoryView:
    """A demonstrated episode as an analyzer sees it."""
    steps = tuple(TranscriptStep(turn.observation, turn.response, turn.info["valid"]) for turn in turns)
    last = turns[-1]
    return TrajectoryView(last.info["task"], steps, last.info["success"], last.following)


def _texts(env: Game) -> Iterator[str]:
    yield from (env.system_prompt, *env.analyzer_instructions.values())
    for seed in range(_EPISODES):
        for turn in demonstrate(env, "train", seed):
            yield from (turn.observation, turn.response)
        yield env.oracle_skill()


def _turn(context: np.ndarray, response: str, chat: ChatFormat) -> Turn:
    return Turn(context, np.asarray(action_ids(chat, response), np.int64))
