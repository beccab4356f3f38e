"""The rule-based hindsight analyzer: replays the moves in the room that the first observation shows."""

from __future__ import annotations

from sprout.seed.analyzer.transcript import TrajectoryView, TranscriptStep
from sprout.seed.envs.response import parse_response
from sprout.seed.envs.sokoban.levels import Level
from sprout.seed.envs.sokoban.room import STEPS, STILL, read
from sprout.seed.envs.sokoban.text import write_moves

_MANY_INVALID = 1 / 3
_GENERAL = "Walk around the box and push it from the side that is opposite to the target."


def analyze(trajectory: TrajectoryView) -> dict[str, str]:
    """`{"episode_summary": ..., "episode_skill": ...}` from nothing but what the trajectory shows."""
    shown = read(trajectory.steps[0].observation) if trajectory.steps else None
    if shown is None:
        return {"episode_summary": "The room is not shown.", "episode_skill": _GENERAL}
    room, start = shown
    level = Level(room, start, room.distances())
    return {
        "episode_summary": _summary(level, trajectory),
        "episode_skill": write_moves(level.solution()) if level.solution() else _GENERAL,
    }


def _summary(level: Level, trajectory: TrajectoryView) -> str:
    if trajectory.success:
        extra = len(trajectory.steps) - len(level.solution())
        return f"Every box is on a target, after {extra} more moves than needed."
    position = level.start
    for turn, step in enumerate(trajectory.steps, start=1):
        move = _move(step)
        position = level.room.after(position, move) or position
        if level.start in level.distances and position not in level.distances:
            return f"Turn {turn}, {move}, left a box where it cannot be pushed onto a target."
    if sum(not step.valid for step in trajectory.steps) > _MANY_INVALID * len(trajectory.steps):
        return "Most moves were not possible."
    return "Turns were lost on steps that led nowhere."


def _move(step: TranscriptStep) -> str:
    """The move of a response in any format; what is none leaves the player where it is."""
    for format in ("action", "plain"):
        command = parse_response(step.response, format).command
        if command in STEPS:
            return command
    return STILL
