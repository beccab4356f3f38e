"""The tokenizer of a model that knows nothing but a shop's pages."""

from __future__ import annotations

from collections.abc import Iterator

from transformers import PreTrainedTokenizerFast

from sprout.seed.envs.tokenizer import train_tokenizer
from sprout.seed.envs.webshop.env import WebshopEnv
from sprout.seed.envs.webshop.expert import demonstrate

SIZE = 1024
_EPISODES = 100


def build_tokenizer(env: WebshopEnv) -> PreTrainedTokenizerFast:
    """Trained on expert play in `env`."""
    return train_tokenizer(_texts(env), SIZE)


def _texts(env: WebshopEnv) -> Iterator[str]:
    yield from (env.system_prompt, *env.analyzer_instructions.values())
    for seed in range(_EPISODES):
        for turn, _ in demonstrate(env, "train", seed):
            yield from (turn.observation, turn.response)
