"""`--dry-run`: what a configuration is going to cost, before anything is done.

Lengths of episodes are not known beforehand, so tokens and FLOPs are upper bounds: every episode as long as
env.max_turns and rollout.max_context_tokens allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sprout.engine.flops import forward_flops, head_flops
from sprout.engine.model import ModelConfig
from sprout.seed.envs import make_env
from sprout.seed.objectives import needs_skills
from sprout.seed.policy import model_folder
from sprout.seed.schema import Config
from sprout.seed.stages.base import model_config, teaching_environment

BYTES = {"float32": 4, "bfloat16": 2}
ADAMW_MOMENTS = 2


def plan(config: Config) -> str:
    """One line per stage and resource. Raises what the stages would: no such model, no such environment."""
    environment = make_env(config.env.name, **config.env.options)
    model = _model(config)
    turns = config.env.max_turns or environment.max_turns
    lines = [
        ("stages", " -> ".join(config.run.stages)),
        ("folder", str(Path(config.run.dir) / config.run.name)),
        *_memory(config, model),
        *_base(config),
        *_stage1(config),
        *_stage2(config, model, turns),
    ]
    return "\n".join(f"{name:12} {text}" for name, text in lines)


def _model(config: Config) -> ModelConfig:
    if "base" in config.run.stages:
        return model_config(config.base, len(teaching_environment(config).tokenizer()))
    return ModelConfig.from_hf(model_folder(config.model.path))


def _memory(config: Config, model: ModelConfig) -> Iterator[tuple[str, str]]:
    head = 1 if model.tied else 2
    parameters = model.parameters_per_row() + head * model.vocab_size * model.hidden_size
    size = BYTES[config.model.dtype]
    master = 4 if config.model.dtype == "bfloat16" else 0
    copies = 2 if config.objective.kl_coef > 0 else 1
    cached = 2 * model.layers * model.kv_heads * model.head_size * size
    rows = config.train.rows_per_micro_batch
    activations = rows * size * model.layers * (12 * model.hidden_size + 4 * model.intermediate_size)
    yield "model", f"{model.family}, {_count(parameters)} parameters, {config.model.dtype}"
    yield (
        "memory",
        f"weights {_size(copies * parameters * size)}{' with the reference' if copies == 2 else ''}, "
        f"optimizer {_size(parameters * (4 * ADAMW_MOMENTS + 4 + master))} with gradients, "
        f"KV cache {_size(config.rollout.cache_tokens * cached)}, "
        f"activations about {_size(activations)} at {rows} rows a micro-batch",
    )


def _base(config: Config) -> Iterator[tuple[str, str]]:
    base = config.base
    if "base" in config.run.stages:
        steps = base.steps + base.reading_steps
        episodes = base.steps * base.episodes_per_step + base.reading_steps * base.reading_episodes_per_step
        yield "base", f"{steps} steps, {episodes} scripted episodes"


def _stage1(config: Config) -> Iterator[tuple[str, str]]:
    pairs = config.collect.tasks * config.collect.rollouts_per_task
    tokens = pairs * config.rollout.max_context_tokens
    if "collect" in config.run.stages:
        episodes = f"{config.collect.tasks} tasks x {config.collect.rollouts_per_task}"
        yield "collect", f"{episodes}, up to {_count(tokens)} tokens"
    if "sft" in config.run.stages and config.sft.epochs:
        yield "sft", f"{config.sft.epochs} epochs of up to {pairs} pairs, {config.sft.batch_size} a step"


def _stage2(config: Config, model: ModelConfig, turns: int) -> Iterator[tuple[str, str]]:
    train, rollout = config.train, config.rollout
    episodes = train.tasks_per_update * train.rollouts_per_task
    if "train" in config.run.stages:
        rows = episodes * rollout.max_context_tokens
        actions = min(episodes * turns * rollout.max_response_tokens, rows)
        teacher = rows if needs_skills(config.objective) else 0
        flops = _update_flops(config, model, rows, actions, teacher)
        yield (
            "train",
            f"{train.updates} updates x {train.tasks_per_update} tasks x {train.rollouts_per_task} rollouts "
            f"of up to {turns} turns; per update up to {_count(rows)} trained and {_count(teacher)} "
            f"scored-only rows, {_count(flops)} FLOPs; {_count(flops * train.updates)} FLOPs in all",
        )
    if "eval" in config.run.stages or "train" in config.run.stages:
        every = train.updates // config.eval.every if config.eval.every else 0
        select, report = config.eval.select_tasks, config.eval.report_tasks
        yield "eval", f"{select} tasks about {every + 2} times, {report} for the report"
    if config.compare:
        yield "compare", ", ".join(config.compare)


def _update_flops(config: Config, model: ModelConfig, rows: int, actions: int, teacher: int) -> float:
    """Rollout and reference are a forward each; students forward and backward; teachers forward."""
    passes = 3 + 1 + (config.objective.kl_coef > 0)
    pairs = rows * config.rollout.max_context_tokens / 2
    layers = passes * forward_flops(model, rows, pairs)
    layers += forward_flops(model, teacher, pairs if teacher else 0)
    return layers + (passes + bool(teacher)) * head_flops(model, actions)


def _count(number: float) -> str:
    for unit in ("", " thousand", " million", " billion"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number * 1e12:.3g}"


def _size(number: float) -> str:
    for unit in ("B", "KB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"
