"""`--dry-run`: what a configuration is going to cost, before anything is done and without any weights.

Lengths of episodes are not known beforehand, so tokens and FLOPs are upper bounds: every episode as long as
env.max_turns and rollout.max_context_tokens allow. In the append layout an episode is one growing sequence of
rows; in the window layout every turn is a prompt of its own. Sharing between prompts is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sprout.engine.flops import forward_flops, head_flops
from sprout.engine.model import ModelConfig
from sprout.engine.weights import read_config
from sprout.seed.backbones import backbone
from sprout.seed.envs import known_environments, make_env
from sprout.seed.memory import memory_per_gpu, parameters
from sprout.seed.objectives import needs_skills, optimizer_steps
from sprout.seed.policy import model_folder
from sprout.seed.schema import Config
from sprout.seed.stages.base import model_config, phases, teaching_environment


def plan(config: Config) -> str:
    """One line per stage and resource. Raises what the stages would: no such model, no such environment."""
    model, source = _model(config)
    turns, environment = _turns(config)
    lines = [
        ("stages", " -> ".join(config.run.stages)),
        ("folder", str(Path(config.run.dir) / config.run.name)),
        ("environment", environment),
        ("model", f"{model.family}, {_count(parameters(model))} parameters, {config.model.dtype}; {source}"),
        *_memory(config, model),
        *_base(config),
        *_stage1(config),
        *_stage2(config, model, turns),
    ]
    return "\n".join(f"{name:12} {text}" for name, text in lines)


def _model(config: Config) -> tuple[ModelConfig, str]:
    """The model's shape, and where it is known from."""
    if "base" in config.run.stages:
        return model_config(config.base, len(teaching_environment(config).tokenizer())), "trained by the run"
    if not Path(config.model.path).exists() and (known := backbone(config.model.path)) is not None:
        return known, f"no weights in {config.model.path} yet: download the model to that folder"
    folder = model_folder(config.model.path)
    return read_config(folder), str(folder)


def _turns(config: Config) -> tuple[int, str]:
    """Turns of an episode, and what to say of the environment; one that is not here can still be planned."""
    name, limit = config.env.name, config.env.max_turns
    if limit is not None and name not in known_environments():
        return limit, f"{name}, which is not installed here"
    own = make_env(name, **config.env.options).max_turns if limit is None else limit
    return own, name


def _memory(config: Config, model: ModelConfig) -> Iterator[tuple[str, str]]:
    needs = memory_per_gpu(config, model)
    total, room = sum(needs.values()), config.machine.memory_gb
    gpus = config.machine.gpus
    fits = "" if room is None else f": {'fits' if total <= room * 1e9 else 'does NOT fit'} in {room:g} GB"
    parts = ", ".join(f"{name} {_size(size)}" for name, size in needs.items())
    yield "memory", f"{_size(total)} on each of {gpus} device{'s' * (gpus > 1)}{fits} ({parts})"


def _base(config: Config) -> Iterator[tuple[str, str]]:
    if "base" in config.run.stages:
        parts = phases(config)
        episodes = sum(phase.steps * phase.sizes["episodes"] for phase in parts)
        yield "base", f"{sum(phase.steps for phase in parts)} steps, {episodes} scripted episodes"


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
        sequences = episodes * (turns if rollout.history_layout == "window" else 1)
        rows = sequences * rollout.max_context_tokens
        actions = min(episodes * turns * rollout.max_response_tokens, rows)
        teacher = rows if needs_skills(config.objective) else 0
        flops = _update_flops(config, model, rows, actions, teacher)
        steps = optimizer_steps(train, episodes * turns)
        yield (
            "train",
            f"{train.updates} updates x {train.tasks_per_update} tasks x {train.rollouts_per_task} rollouts "
            f"of up to {turns} turns; per update up to {_count(rows)} trained and {_count(teacher)} "
            f"scored-only rows, {steps} optimizer step{'s' * (steps > 1)}, {_count(flops)} FLOPs; "
            f"{_count(flops * train.updates)} FLOPs in all, "
            f"{_count(flops * train.updates / config.machine.gpus)} on each device",
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
