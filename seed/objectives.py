"""From trajectories and skills to what the engine trains on: turns, masks, advantages and coefficients.

The methods themselves are data (`sprout.seed.methods`); this file only reads the objective's fields.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sprout.engine.chat import ChatFormat
from sprout.engine.forest import Floats, Turn
from sprout.engine.shaping import AdvantageShaping
from sprout.engine.update import UpdateSettings
from sprout.kernels import PolicyLossCoefficients
from sprout.seed.advantages import group_advantages, turn_advantage
from sprout.seed.analyzer.sources import teacher_skills
from sprout.seed.conversation import Conversation, recorded_contexts
from sprout.seed.schema import Config, ObjectiveSection, TrainSection
from sprout.seed.trajectory import Ids, Skill, Trajectory, TurnRecord


@dataclass
class UpdateTurns:
    """The turns of one update; `owners[i]` is the (trajectory, turn) of `turns[i]`."""

    turns: list[Turn] = field(default_factory=list)
    owners: list[tuple[int, int]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


def turns_for_update(
    trajectories: Sequence[Trajectory], skills: Sequence[Skill | None], config: Config, chat: ChatFormat
) -> UpdateTurns:
    """Every turn of every usable trajectory: teacher context, masks, advantage and the sampler's log-probs.

    Writes into each trajectory what its teacher showed: `skill`, `teacher_skill`, `skill_donor`. Raises
    ValueError for groups that mix tasks, a task split over groups, a recorded context that the layout does
    not give, and a teacher context beyond rollout.max_context_tokens (unless the turn may lose its teacher).
    """
    check_groups(trajectories)
    _assign_teachers(trajectories, skills, config)
    advantages = trajectory_advantages(trajectories, config.objective)
    result = UpdateTurns()
    overflow = 0
    for index, trajectory in enumerate(trajectories):
        if np.isnan(advantages[index]):
            continue
        turns, dropped = _turns_of(trajectory, float(advantages[index]), config, chat)
        overflow += dropped
        result.turns += turns
        result.owners += [(index, number) for number in range(len(turns))]
    result.metrics = _metrics(result.turns, advantages, overflow)
    return result


def optimizer_steps(train: TrainSection, turns: int) -> int:
    """Steps of an update that has so many turns."""
    if train.turns_per_optimizer_step is None:
        return train.optimizer_steps_per_update
    return max(1, math.ceil(turns / train.turns_per_optimizer_step))


def update_settings(config: Config, update: int = 1, turns: int = 0) -> UpdateSettings:
    """The engine's view of the objective at update number `update`, which has so many turns."""
    objective = config.objective
    coefficients = PolicyLossCoefficients(
        clip_low=objective.clip_low,
        clip_high=objective.clip_high,
        dual_clip=objective.dual_clip,
        kl=objective.kl_coef,
        entropy=objective.entropy_coef,
        opd=objective.lambda_opd,
        beta=objective.beta,
        skill_kl=objective.skill_kl_coef,
    )
    return UpdateSettings(
        coefficients=coefficients,
        temperature=config.rollout.temperature,
        rows_per_micro_batch=config.train.rows_per_micro_batch,
        optimizer_steps=optimizer_steps(config.train, turns),
        loss_aggregation=objective.loss_aggregation,
        teacher_policy=objective.teacher_policy,
        opd_baseline=objective.opd_baseline,
        shaping=AdvantageShaping(
            additive=objective.delta_advantage,
            multiplicative=objective.delta_scale
            * max(0.0, 1 - (update - 1) / objective.delta_scale_updates),
        ),
    )


def needs_skills(objective: ObjectiveSection) -> bool:
    """Whether the loss has a term that looks at the teacher."""
    weights = (
        objective.lambda_opd,
        objective.skill_kl_coef,
        objective.delta_advantage,
        objective.delta_scale,
    )
    return any(weight > 0 for weight in weights)


def is_valid(turn: TurnRecord, objective: ObjectiveSection) -> bool:
    """Whether the turn's action counts as valid under `objective.validity`."""
    return turn.well_formed and (objective.validity == "format" or turn.admissible)


def check_groups(trajectories: Sequence[Trajectory]) -> None:
    """Raises ValueError unless groups and tasks are one to one and every (group, member) occurs once."""
    task_of: dict[str, tuple[str, str, int]] = {}
    group_of: dict[tuple[str, str, int], str] = {}
    seen: set[str] = set()
    for trajectory in trajectories:
        task, group = (trajectory.env, trajectory.split, trajectory.seed), trajectory.group
        if task_of.setdefault(group, task) != task:
            raise ValueError(f"group {group} mixes tasks {task_of[group]} and {task}; give each a group")
        if group_of.setdefault(task, group) != group:
            raise ValueError(f"task {task} is in groups {group_of[task]} and {group}; give it one group id")
        if trajectory.id in seen:
            raise ValueError(f"trajectory {trajectory.id} occurs twice in one update")
        seen.add(trajectory.id)


def trajectory_advantages(trajectories: Sequence[Trajectory], objective: ObjectiveSection) -> Floats:
    """[N] group-relative advantages; NaN for a trajectory that takes no part."""
    members: dict[str, list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        members.setdefault(trajectory.group, []).append(index)
    advantages = np.full(len(trajectories), np.nan, np.float32)
    for indices in members.values():
        group = [trajectories[i] for i in indices]
        advantages[indices] = group_advantages(
            [trajectory.reward if trajectory.usable else None for trajectory in group],
            [len(trajectory.turns) for trajectory in group],
            statistics=objective.group_statistics,
            scale=objective.advantage_scale,
            min_std=objective.min_group_std,
        )
    return advantages


def command_mask(action: Sequence[int], command: str, chat: ChatFormat) -> Floats:
    """[len(action)] 1 on the ids of the command inside a response, 0 on reasoning, tags and the stop id.

    A command that the response does not contain marks nothing.
    """
    mask = np.zeros(len(action), np.float32)
    ids = list(action)
    start = chat.decode(ids).rfind(command)
    if command and start >= 0:
        prefixes = range(len(ids) + 1)

        def length(count: int) -> int:
            return len(chat.decode(ids[:count]))

        first = bisect_right(prefixes, start, key=length) - 1
        last = bisect_left(prefixes, start + len(command), key=length)
        mask[first:last] = 1
    return mask


def _assign_teachers(
    trajectories: Sequence[Trajectory], skills: Sequence[Skill | None], config: Config
) -> None:
    chosen = teacher_skills(trajectories, skills, config.objective.skill_source, config.run.seed)
    wanted = needs_skills(config.objective)
    for trajectory, skill, teacher in zip(trajectories, skills, chosen, strict=True):
        trajectory.skill = skill
        trajectory.teacher_skill = teacher.text if wanted else None
        trajectory.skill_donor = teacher.donor if wanted else None


def _turns_of(
    trajectory: Trajectory, advantage: float, config: Config, chat: ChatFormat
) -> tuple[list[Turn], int]:
    """The turns of one trajectory, and how many of them lost their teacher because it did not fit."""
    conversation = Conversation.of(trajectory, chat, config.rollout)
    contexts = recorded_contexts(trajectory, conversation)
    turns, overflow = [], 0
    for number, (record, context) in enumerate(zip(trajectory.turns, contexts, strict=True)):
        place = f"trajectory {trajectory.id}, turn {number}"
        teacher = _teacher_context(conversation, trajectory, record, number, config)
        if teacher is not None and not _fits(len(teacher) + len(record.action), place, config):
            teacher, overflow = None, overflow + 1
        turns.append(_turn(record, context, teacher, advantage, config.objective, chat))
    return turns, overflow


def _fits(tokens: int, place: str, config: Config) -> bool:
    if tokens > config.rollout.max_context_tokens and config.objective.teacher_context_overflow == "error":
        raise ValueError(
            f"{place}: the teacher context needs {tokens} tokens; raise rollout.max_context_tokens "
            f"(now {config.rollout.max_context_tokens}) or set objective.teacher_context_overflow=drop_opd"
        )
    return tokens <= config.rollout.max_context_tokens


def _teacher_context(
    conversation: Conversation, trajectory: Trajectory, record: TurnRecord, number: int, config: Config
) -> Ids | None:
    dropped = config.objective.opd_invalid_actions == "drop" and not is_valid(record, config.objective)
    if trajectory.teacher_skill is None or dropped:
        return None
    return conversation.teacher(trajectory.teacher_skill, number)


def _turn(
    record: TurnRecord,
    context: Ids,
    teacher: Ids | None,
    advantage: float,
    objective: ObjectiveSection,
    chat: ChatFormat,
) -> Turn:
    mask = np.asarray(record.mask, np.float32)
    opd_mask = mask
    if objective.opd_mask == "action_only":
        opd_mask = mask * command_mask(record.action, record.command, chat)
    own = turn_advantage(advantage, is_valid(record, objective), objective.invalid_action_penalty)
    return Turn(
        context=context,
        action=np.asarray(record.action, np.int64),
        teacher_context=teacher,
        mask=mask,
        opd_mask=opd_mask,
        advantage=np.full(len(mask), own, np.float32),
        old_logprob=np.asarray(record.logprobs, np.float32),
    )


def _metrics(turns: Sequence[Turn], advantages: Floats, overflow: int) -> dict[str, float]:
    values = np.array([turn.advantage[0] for turn in turns if turn.advantage is not None])
    metrics = {
        "seed/trajectories_excluded": float(np.isnan(advantages).sum()),
        "seed/teacher_turns": float(sum(turn.teacher_context is not None for turn in turns)),
        "seed/teacher_overflow_turns": float(overflow),
    }
    if len(values):
        statistics = {"mean": values.mean(), "max": values.max(), "min": values.min()}
        metrics |= {f"critic/advantages/{name}": float(value) for name, value in statistics.items()}
    return metrics
