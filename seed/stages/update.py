"""One Stage-2 update: play groups, analyze the episodes, score every action in both contexts, train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sprout.engine.metrics import Timings
from sprout.engine.optimizer import Optimizer
from sprout.engine.reference import Reference
from sprout.engine.update import TurnScores, UpdateResult, policy_update
from sprout.seed import incidents
from sprout.seed.analyzer.quality import delta_by_outcome, skill_metrics
from sprout.seed.analyzer.server import usage
from sprout.seed.objectives import UpdateTurns, is_valid, needs_skills, turns_for_update, update_settings
from sprout.seed.player import Player
from sprout.seed.policy import Policy
from sprout.seed.rollout import training_tasks
from sprout.seed.schema import Config, ObjectiveSection
from sprout.seed.statistics import episode_metrics
from sprout.seed.trajectory import Skill, Trajectory


@dataclass
class Outcome:
    """What one update played and learned; `non_finite` names what spoiled its gradient, if anything did."""

    trajectories: list[Trajectory]
    turns: UpdateTurns
    scores: list[TurnScores]
    metrics: dict[str, Any]
    skipped: list[tuple[int, int]] = field(default_factory=list)
    non_finite: str = ""


class Updater:
    """Makes updates number 1, 2, ...: each a function of the weights, the optimizer state and its number.

    reference: the Stage-1 model, for the KL term; None when the term is off
    """

    def __init__(
        self,
        config: Config,
        policy: Policy,
        optimizer: Optimizer,
        player: Player,
        reference: Reference | None,
        timings: Timings,
    ) -> None:
        self._config, self._policy, self._optimizer = config, policy, optimizer
        self._player, self._reference, self._timings = player, reference, timings
        objective = config.objective
        analyzes = needs_skills(objective) and objective.skill_source != "null"
        self._analyzer = player.analyzer(config.analyzer.kind) if analyzes else None
        self._rows = config.train.rows_per_micro_batch  # fewer once memory has not sufficed

    def __call__(self, number: int) -> Outcome:
        train = self._config.train
        tasks = training_tasks(self._config.run.seed, number, train.tasks_per_update)
        with self._timings("rollout"):
            played = self._player.rollout(tasks, train.rollouts_per_task, number, train.skill)
        trajectories = played.trajectories
        with self._timings("analyze"):
            skills = self._skills(trajectories)
        turns = turns_for_update(trajectories, skills, self._config, self._policy.chat)
        lr = self._optimizer.lr
        result = self._learn(turns, number)
        metrics = {"actor/lr": lr, **result.metrics, **turns.metrics}
        metrics |= episode_metrics(trajectories) | reward_metrics(trajectories, self._config.objective)
        if self._analyzer is not None:
            metrics |= self._skill_metrics(trajectories, skills)
        metrics |= incidents.metrics("rollout", played.incidents + self._player.take_incidents())
        metrics |= delta_metrics(result.scores, turns, trajectories)
        skipped = [turns.owners[i] for i in result.skipped_turns]
        non_finite = ", ".join(self._optimizer.non_finite[:3]) if skipped else ""
        return Outcome(trajectories, turns, result.scores, metrics, skipped, non_finite)

    def _skills(self, trajectories: list[Trajectory]) -> Sequence[Skill | None]:
        return self._analyzer.analyze(trajectories) if self._analyzer else [None] * len(trajectories)

    def _learn(self, turns: UpdateTurns, number: int) -> UpdateResult:
        settings = update_settings(self._config, number, len(turns.turns))
        settings = replace(settings, rows_per_micro_batch=self._rows)
        batch = turns.turns
        if self._reference is not None:
            with self._timings("rescore"):
                batch = self._reference.score(
                    batch,
                    temperature=settings.temperature,
                    rows_per_micro_batch=settings.rows_per_micro_batch,
                )
        with self._timings("update"):
            result = policy_update(self._policy.decoder, self._optimizer, batch, settings)
        self._rows = int(result.metrics["actor/rows_per_micro_batch"])
        self._player.generator.reset()
        return result

    def _skill_metrics(
        self, trajectories: list[Trajectory], skills: Sequence[Skill | None]
    ) -> dict[str, float]:
        written = [skill for skill in skills if skill is not None]
        metrics = skill_metrics(trajectories, written)
        metrics |= {f"seed/analyzer_{name}": value for name, value in usage(self._analyzer).items()}
        right = self._player.skills_right(trajectories, written)
        return metrics if right is None else {**metrics, "seed/skill_right_rate": right}


def reward_metrics(trajectories: Sequence[Trajectory], objective: ObjectiveSection) -> dict[str, float]:
    """critic/rewards/*: the objective's view of an episode, its reward less the penalties of its turns."""
    rewards = [
        trajectory.reward
        - objective.invalid_action_penalty * sum(not is_valid(turn, objective) for turn in trajectory.turns)
        for trajectory in trajectories
        if trajectory.reward is not None and math.isfinite(trajectory.reward)
    ]
    if not rewards:
        return {}
    values = np.asarray(rewards)
    statistics = {"mean": values.mean(), "max": values.max(), "min": values.min()}
    return {f"critic/rewards/{name}": float(value) for name, value in statistics.items()}


def delta_metrics(
    scores: Sequence[TurnScores], turns: UpdateTurns, trajectories: Sequence[Trajectory]
) -> dict[str, float]:
    """Where Delta and the gate come from: successes or failures; first, middle or last token of a response.

    With these a gain can be told apart from "a skill is present, so act like an expert".
    """
    owners = [trajectories[index].success for index, _ in turns.owners]
    metrics = delta_by_outcome([score.delta for score in scores], owners)
    gates = [(s.gate, won) for s, won in zip(scores, owners, strict=True) if s.gate is not None]
    metrics |= _means("seed/gate_success", [gate for gate, won in gates if won])
    metrics |= _means("seed/gate_failure", [gate for gate, won in gates if not won])
    deltas = [score.delta for score in scores if score.delta is not None]
    metrics |= _means("seed/delta_first_token", [delta[:1] for delta in deltas])
    metrics |= _means("seed/delta_inner_tokens", [delta[1:-1] for delta in deltas])
    metrics |= _means("seed/delta_last_token", [delta[-1:] for delta in deltas])
    return metrics


def _means(name: str, parts: Sequence[Any]) -> dict[str, float]:
    values = np.concatenate(parts) if parts else np.empty(0)
    return {name: float(values.mean())} if len(values) else {}
