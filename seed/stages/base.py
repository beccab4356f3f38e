"""Trains a base model from scratch on the environment's own lessons; it stands in for a pretrained model.

The environment brings a tokenizer and lessons (scripted play with skills, reading questions). Matrices move
with Muon, the rest with AdamW, both on a cosine schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sprout.engine import parallel
from sprout.engine.chat import ChatFormat
from sprout.engine.induction import initialize_induction
from sprout.engine.model import Decoder, ModelConfig
from sprout.engine.optimizer import OptimizerConfig, build_optimizer
from sprout.engine.rng import derive_key
from sprout.engine.schedule import Schedule
from sprout.engine.supervised import supervised_loss
from sprout.seed.envs import make_env
from sprout.seed.policy import Policy
from sprout.seed.run import Result, Run
from sprout.seed.schema import BaseSection, Config
from sprout.seed.stages.supervised import Lessons, fit

MAX_POSITION = 2048
ROPE_THETA = 1e6  # heads of 16: with the usual 1e4 few dimensions stand still over a transcript
HELD_OUT = dict(episodes=32, transcripts=32, reports=8)


@dataclass(frozen=True)
class Phase:
    """Part of the training: `sizes` say what a batch holds, `lr_factor` scales both learning rates."""

    name: str
    steps: int
    sizes: Mapping[str, int]
    seed: int
    lr_factor: float


def phases(config: Config) -> list[Phase]:
    """First to find things, then to act and to follow skills; last, with smaller steps, mostly to read."""
    base, seed = config.base, config.run.seed
    reports = dict(reports=base.reports_per_step)
    recall = dict(episodes=0, transcripts=0, reports=base.recall_reports_per_step)
    acting = dict(episodes=base.episodes_per_step, transcripts=base.transcripts_per_step) | reports
    reading = reports | dict(
        episodes=base.reading_episodes_per_step, transcripts=base.reading_transcripts_per_step
    )
    parts = (
        Phase("recall", base.recall_steps, recall, derive_key(seed, "recall"), 1.0),
        Phase("acting", base.steps, acting, seed, 1.0),
        Phase("reading", base.reading_steps, reading, derive_key(seed, "reading"), base.reading_lr_factor),
    )
    return [phase for phase in parts if phase.steps]


def run_stage(run: Run) -> Result:
    """Leaves the model in base/model."""
    config, folder = run.config, run.folder.base
    environment = teaching_environment(config)
    policy = new_policy(config, environment, folder / "tokenizer")
    held_out = environment.lesson(
        policy.chat, config.rollout, seed=derive_key(config.run.seed, "held out"), index=0, **HELD_OUT
    )
    rows = config.train.rows_per_micro_batch
    for phase in phases(config):

        def batch(step: int, phase: Phase = phase) -> Any:
            return environment.lesson(policy.chat, config.rollout, seed=phase.seed, index=step, **phase.sizes)

        every = config.base.checkpoint_every
        lessons = Lessons(f"base, {phase.name}", phase.steps, batch, held_out, every, rows)
        optimizer = build_optimizer(policy.decoder, optimizer_config(config.base, phase))
        fit(run, policy, optimizer, lessons, folder / phase.name)
    policy.save(folder / "model")
    parameters = sum(p.numel() for p in policy.decoder.parameters())
    return {"parameters": parameters, "held_out_loss": supervised_loss(policy.decoder, held_out, rows)}


def teaching_environment(config: Config) -> Any:
    """An environment of the run. Raises ValueError if it brings no lessons."""
    environment: Any = make_env(config.env.name, **config.env.options)
    if not hasattr(environment, "lesson") or not hasattr(environment, "tokenizer"):
        raise ValueError(
            f"env.name: {config.env.name} has no lessons to train a base on; give a model.path and take "
            "`base` out of run.stages"
        )
    return environment


def new_policy(config: Config, environment: Any, tokenizer_folder: Path) -> Policy:
    """A policy with fresh weights, of the configured size and for the environment's tokenizer."""
    tokenizer = environment.tokenizer()
    parallel.on_main(tokenizer.save_pretrained)(tokenizer_folder)
    decoder = Decoder(model_config(config.base, len(tokenizer))).initialize(config.run.seed)
    if config.base.induction:
        initialize_induction(decoder, derive_key(config.run.seed, "induction"))
    compose_names(decoder, tokenizer.get_vocab())
    parallel.shard_model(decoder, decoder.model.layers, decoder.dtype)
    return Policy(decoder, ChatFormat.from_tokenizer(tokenizer), tokenizer_folder)


def compose_names(decoder: Decoder, ids: Mapping[str, int]) -> None:
    """A token of several words starts as the sum of theirs, as long as any other: "mug 1" is a mug.

    As subwords stand in for a word that is added to a vocabulary.
    """
    embedding = decoder.model.embed_tokens.weight.data
    for token, index in ids.items():
        words = [ids[word] for word in token.split() if word in ids]
        if len(words) > 1:
            embedding[index] = embedding[words].sum(0) / len(words) ** 0.5


def model_config(base: BaseSection, vocabulary: int) -> ModelConfig:
    """A Qwen2 architecture with a tied head. Raises ValueError for sizes that do not divide."""
    for total, part, names in (
        (base.hidden_size, 2 * base.heads, "base.hidden_size must be a multiple of twice base.heads"),
        (base.heads, base.kv_heads, "base.heads must be a multiple of base.kv_heads"),
    ):
        if total % part:
            raise ValueError(f"{names}: {total} is not a multiple of {part}")
    return ModelConfig.from_hf(
        dict(
            model_type="qwen2",
            vocab_size=vocabulary,
            hidden_size=base.hidden_size,
            intermediate_size=base.intermediate_size,
            num_hidden_layers=base.layers,
            num_attention_heads=base.heads,
            num_key_value_heads=base.kv_heads,
            head_dim=base.hidden_size // base.heads,
            max_position_embeddings=MAX_POSITION,
            tie_word_embeddings=True,
            rope_theta=ROPE_THETA,
        )
    )


def optimizer_config(base: BaseSection, phase: Phase) -> OptimizerConfig:
    """Muon and AdamW over the whole length of the phase."""
    schedule = Schedule(
        "cosine",
        total_steps=max(phase.steps, 1),
        warmup_ratio=base.warmup_fraction,
        final_ratio=base.final_lr_ratio,
    )
    return OptimizerConfig(
        name="muon",
        lr=phase.lr_factor * base.lr,
        muon_lr=phase.lr_factor * base.muon_lr,
        betas=(0.9, 0.95),
        weight_decay=base.weight_decay,
        schedule=schedule,
    )
