"""Which skill a teacher context shows: the trajectory's own, none at all, or another task's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from sprout.engine.rng import derive_key
from sprout.seed.trajectory import Skill, Trajectory

Source = Literal["own", "null", "shuffled"]


class TeacherSkill(NamedTuple):
    """The exact text (None: no teacher) and the id of the trajectory that it was written about."""

    text: str | None
    donor: str | None


def teacher_skills(
    trajectories: Sequence[Trajectory], skills: Sequence[Skill | None], source: Source, seed: int = 0
) -> list[TeacherSkill]:
    """The teacher's skill per trajectory. A missing or invalid skill gives no teacher, not an empty skill.

    "null" is the empty skill for everyone: the teacher context equals the student's. "shuffled" rotates the
    skills over the groups, so that nobody gets one of their own task; a single group has no teacher.
    """
    assert len(trajectories) == len(skills), "one skill (or None) per trajectory"
    if source == "null":
        return [TeacherSkill("", None)] * len(trajectories)
    donors = range(len(trajectories)) if source == "own" else _other_tasks(trajectories, seed)
    return [_lent(donor, trajectories, skills) for donor in donors]


def _lent(
    donor: int | None, trajectories: Sequence[Trajectory], skills: Sequence[Skill | None]
) -> TeacherSkill:
    skill = skills[donor] if donor is not None else None
    if donor is None or skill is None or not skill.valid:
        return TeacherSkill(None, None)
    return TeacherSkill(skill.text, trajectories[donor].id)


def _other_tasks(trajectories: Sequence[Trajectory], seed: int) -> list[int | None]:
    """Index of each trajectory's donor: its counterpart in the group that a rotation of the groups gives."""
    members: dict[str, list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        members.setdefault(trajectory.group, []).append(index)
    groups = sorted(members)
    if len(groups) < 2:
        return [None] * len(trajectories)
    shift = 1 + derive_key(seed, "shuffle", trajectories[0].update) % (len(groups) - 1)
    donors: list[int | None] = [None] * len(trajectories)
    for place, group in enumerate(groups):
        lenders = members[groups[(place + shift) % len(groups)]]
        for member, index in enumerate(members[group]):
            donors[index] = lenders[member % len(lenders)]
    return donors
