"""One case as the page takes it: a trajectory and its scores, cut to a bounded size."""

from __future__ import annotations

import math
from typing import Any

import orjson

from sprout.seed.report.picks import Measured
from sprout.seed.report.pieces import Pieces
from sprout.seed.scores import ScoredTurn
from sprout.seed.trajectory import Skill, TurnRecord

CASE_BYTES = 256 * 2**10  # a case that is longer as JSON is shown up to there
TEXT = 4000  # characters of an observation, a task or a skill


def case_record(measured: Measured, why: str, pieces: Pieces) -> dict[str, Any]:
    """One case as the page takes it; `cut` counts the later turns that were left out for their size."""
    trajectory = measured.trajectory
    by_turn = {score.turn: score for score in measured.scores}
    turns: list[dict[str, Any]] = []
    room = CASE_BYTES
    for number, record in enumerate(trajectory.turns):
        turn = _turn(record, by_turn.get(number), pieces)
        room -= len(orjson.dumps(turn))
        if room < 0 and turns:
            break
        turns.append(turn)
    return {
        "id": trajectory.id,
        "update": trajectory.update,
        "why": why,
        "env": trajectory.env,
        "task": _shortened(trajectory.task),
        "system": _shortened(trajectory.system),
        "family": trajectory.family,
        "success": trajectory.success if trajectory.reward is not None else None,
        "reward": _rounded(trajectory.reward),
        "rejected": trajectory.rejected,
        "truncated": trajectory.truncated,
        "skill": _skill(trajectory.skill) if trajectory.skill is not None else None,
        "teacher": None if trajectory.teacher_skill is None else _shortened(trajectory.teacher_skill),
        "donor": trajectory.skill_donor,
        "delta_mean": _rounded(measured.delta_mean),
        "delta_max": _rounded(measured.delta_max),
        "disagreement": _rounded(measured.disagreement),
        "turns": turns,
        "cut": len(trajectory.turns) - len(turns),
        "final": _shortened(trajectory.final_observation),
    }


def _turn(record: TurnRecord, scores: ScoredTurn | None, pieces: Pieces) -> dict[str, Any]:
    """Per-token columns beside the observation; columns of scores are None where there are none."""
    count = CASE_BYTES // 64
    columns = {
        "sampled": record.logprobs,
        **(scores.model_dump(exclude={"trajectory", "turn"}) if scores else {}),
    }
    return {
        "observation": _shortened(record.observation),
        "command": _shortened(record.command),
        "valid": record.well_formed and record.admissible,
        "reward": _rounded(record.reward),
        "ids": record.action[:count],
        "texts": pieces(record.action[:count]),
        "mask": record.mask[:count],
        "cut": max(0, len(record.action) - count),
        **{
            name: values and [_rounded(value) for value in values[:count]] for name, values in columns.items()
        },
    }


def _skill(skill: Skill) -> dict[str, Any]:
    return {
        "analyzer": skill.analyzer,
        "valid": skill.valid,
        "problem": skill.problem,
        "text": _shortened(skill.text),
        "summary": _shortened(skill.summary),
        "raw": _shortened(skill.raw) if not skill.valid else "",
    }


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[:TEXT]} [... {len(text) - TEXT} characters more]"


def _rounded(value: float | None) -> float | None:
    return round(value, 4) if value is not None and math.isfinite(value) else None
