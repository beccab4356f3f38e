"""A policy ready to use: weights, chat format and the folder they came from."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sprout.engine import parallel
from sprout.engine.chat import ChatFormat
from sprout.engine.generator import Generator
from sprout.engine.tokenizer import load_tokenizer
from sprout.engine.weights import load_model, save_model

if TYPE_CHECKING:
    from sprout.engine.model import Decoder
    from sprout.seed.schema import Config

SHIPPED = {"household-base": "envs/household/base"}


@dataclass(frozen=True)
class Policy:
    """`tokenizer_folder` is the model folder whose tokenizer files go with the weights."""

    decoder: Decoder
    chat: ChatFormat
    tokenizer_folder: Path

    def save(self, folder: Path) -> None:
        """Write a model folder that `load_policy` and transformers read."""
        save_model(self.decoder, folder, self.tokenizer_folder)

    def generator(self, config: Config) -> Generator:
        """A generator over the policy's present weights."""
        return Generator(
            self.decoder,
            stop_id=self.chat.stop_id,
            cache_tokens=config.rollout.cache_tokens,
            page_size=config.rollout.page_size,
        )


def model_folder(path: str | Path) -> Path:
    """The folder of a shipped model by name, or `path` itself."""
    if str(path) in SHIPPED:
        return Path(str(files("sprout.seed"))) / SHIPPED[str(path)]
    return Path(path)


def load_policy(path: str | Path, config: Config) -> Policy:
    """The policy stored in a model folder, on the configured device.

    Raises FileNotFoundError or ValueError, in one line, for a folder that lacks something or does not fit.
    """
    folder = model_folder(path)
    device = parallel.initialize(None if config.model.device == "auto" else config.model.device)
    decoder = load_model(folder, device, getattr(torch, config.model.dtype))
    longest, limit = config.rollout.max_context_tokens, decoder.config.max_position
    if longest > limit:
        raise ValueError(
            f"rollout.max_context_tokens: {longest} exceeds the {limit} positions of {folder}; lower it"
        )
    return Policy(decoder, ChatFormat.from_tokenizer(load_tokenizer(folder)), folder)
