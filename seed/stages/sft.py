"""Stage 1, last step: the base learns to analyze. NLL on the skill tokens only, held out by task.

Part of every batch can be the base's own lessons (`sft.replay_fraction`), which keeps it able to act and to
follow a skill while it learns to write one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sprout.engine.forest import Turn
from sprout.engine.metrics import MetricsLogger
from sprout.engine.optimizer import OptimizerConfig, build_optimizer
from sprout.engine.rng import derive_key
from sprout.engine.schedule import Schedule
from sprout.engine.supervised import supervised_loss
from sprout.seed import incidents
from sprout.seed.analyzer.prompt import instructions_of, skill_turn
from sprout.seed.analyzer.quality import skill_metrics
from sprout.seed.envs import make_env
from sprout.seed.player import Player
from sprout.seed.policy import Policy, load_policy
from sprout.seed.run import Result, Run
from sprout.seed.schema import Config, SftSection
from sprout.seed.stages.collect import stored
from sprout.seed.stages.supervised import Lessons, fit
from sprout.seed.trajectory import Trajectory


@dataclass(frozen=True)
class Pairs:
    """Stage 1's material, split by task; turns are (analyzer's prompt, skill as JSON).

    held_out_trajectories are all those of the held-out tasks, whether they make a pair or not.
    left_out counts trajectories: `invalid` has no valid skill, `unreadable` a response that the tokenizer
    cannot encode again as text, `too_long` exceeds sft.max_tokens.
    """

    train: list[Turn] = field(default_factory=list)
    held_out: list[Turn] = field(default_factory=list)
    held_out_trajectories: list[Trajectory] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=lambda: dict(invalid=0, unreadable=0, too_long=0))


def run_stage(run: Run) -> Result:
    """Leaves the Stage-1 model in checkpoints/sft/model; nothing to do when sft.epochs is 0."""
    config = run.config
    if config.sft.epochs == 0:
        return {"pairs": 0}
    policy = load_policy(run.base_model(), config)
    player = Player(policy, config, run.console)
    pairs = skill_pairs(list(stored(run.folder.annotated)), policy, player.environment, config)
    batches = Batches(pairs.train, policy, config)
    rows = config.train.rows_per_micro_batch
    before = supervised_loss(policy.decoder, pairs.held_out, rows) if pairs.held_out else 0.0
    lessons = Lessons("sft", batches.steps, batches, pairs.held_out, batches.steps_per_epoch, rows)
    optimizer = build_optimizer(policy.decoder, optimizer_config(config.sft, batches.steps))
    fit(run, policy, optimizer, lessons, run.folder.sft)
    policy.save(run.folder.stage1_model)
    result = {
        "pairs": len(pairs.train),
        **{f"pairs_{reason}": count for reason, count in pairs.left_out.items()},
        "held_out_loss_before": before,
        "held_out_loss": supervised_loss(policy.decoder, pairs.held_out, rows) if pairs.held_out else 0.0,
        **skill_quality(player, pairs.held_out_trajectories),
    }
    log = MetricsLogger(run.folder.sft, resume_from=batches.steps + 1)
    log.log(batches.steps + 1, {name: value for name, value in result.items() if value is not None})
    log.close()
    return {**result, incidents.KEY: incidents.counted(player.take_incidents())}


def skill_pairs(
    trajectories: Sequence[Trajectory], policy: Policy, environment: Any, config: Config
) -> Pairs:
    """The pairs of all trajectories, held out by task. Raises ValueError when none is left to train on."""
    instructions = instructions_of(environment)
    held_out_tasks = held_out(sorted({t.seed for t in trajectories}), config)
    pairs = Pairs()
    for trajectory in trajectories:
        is_held_out = trajectory.seed in held_out_tasks
        pairs.held_out_trajectories.extend([trajectory] if is_held_out else [])
        turn = _pair(trajectory, policy, instructions, config)
        if isinstance(turn, str):
            pairs.left_out[turn] += 1
        else:
            (pairs.held_out if is_held_out else pairs.train).append(turn)
    if not pairs.train:
        reasons = ", ".join(f"{count} {reason}" for reason, count in pairs.left_out.items())
        raise ValueError(f"no skill pair is left for Stage 1 of {len(trajectories)} trajectories: {reasons}")
    return pairs


def _pair(
    trajectory: Trajectory, policy: Policy, instructions: Mapping[str, str], config: Config
) -> Turn | str:
    """The pair of a trajectory, or why it has none."""
    if trajectory.skill is None or not trajectory.skill.valid:
        return "invalid"
    try:
        turn = skill_turn(
            trajectory, trajectory.skill, policy.chat, instructions, config.analyzer.terminal_observation
        )
    except ValueError:
        return "unreadable"
    return turn if len(turn.context) + len(turn.action) <= config.sft.max_tokens else "too_long"


def held_out(tasks: Sequence[int], config: Config) -> set[int]:
    """Seeds of the tasks that Stage 1 never trains on: at least one unless the fraction is 0, never all."""
    fraction = config.sft.holdout_fraction
    count = min(max(1, round(fraction * len(tasks))), len(tasks) - 1) if fraction else 0
    return set(sorted(tasks, key=lambda seed: derive_key(config.run.seed, "held out", seed))[:count])


class Batches:
    """The turns of every SFT step, from run seed and step alone; no pair is repeated within an epoch."""

    def __init__(self, pairs: Sequence[Turn], policy: Policy, config: Config) -> None:
        self._pairs, self._chat, self._config = pairs, policy.chat, config
        size, fraction = config.sft.batch_size, config.sft.replay_fraction
        self._replayed = min(round(size * fraction), size - 1)
        self._fresh = size - self._replayed
        self.steps_per_epoch = math.ceil(len(pairs) / self._fresh)
        self.steps = config.sft.epochs * self.steps_per_epoch
        if self._replayed:
            self._environment: Any = make_env(config.env.name, **config.env.options)
            if not hasattr(self._environment, "lesson"):
                raise ValueError(f"sft.replay_fraction: {config.env.name!r} has no lessons; set 0")

    def __call__(self, step: int) -> list[Turn]:
        epoch, index = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng(derive_key(self._config.run.seed, "sft", epoch)).permutation(
            len(self._pairs)
        )
        chosen = order[index * self._fresh : (index + 1) * self._fresh]
        return [self._pairs[i] for i in chosen] + self._replay(step)

    def _replay(self, step: int) -> list[Turn]:
        if not self._replayed:
            return []
        turns: list[Turn] = self._environment.lesson(
            self._chat,
            self._config.rollout,
            seed=derive_key(self._config.run.seed, "replay"),
            index=step,
            episodes=self._replayed,
            transcripts=0,
        )
        return turns


def skill_quality(player: Player, trajectories: list[Trajectory]) -> dict[str, float | None]:
    """Of what the policy writes about held-out trajectories: validity, length, grounding, share right."""
    if not trajectories:
        return {}
    skills = player.analyzer("policy").analyze(trajectories)
    quality = skill_metrics(trajectories, skills)
    named = {name.removeprefix("seed/"): value for name, value in quality.items()}
    return {**named, "skill_right_rate": player.skills_right(trajectories, skills)}


def optimizer_config(sft: SftSection, steps: int) -> OptimizerConfig:
    """The optimizer of the whole stage."""
    schedule = Schedule(sft.schedule, total_steps=steps, warmup_ratio=sft.warmup_fraction)
    return OptimizerConfig(
        name=sft.optimizer,
        lr=sft.lr,
        muon_lr=sft.muon_lr,
        betas=sft.betas,
        weight_decay=sft.weight_decay,
        clip_grad_norm=sft.grad_clip,
        schedule=schedule,
    )
