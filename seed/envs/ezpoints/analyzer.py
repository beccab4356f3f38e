"""The rule-based hindsight analyzer: reads the numbers and the formula that the observations show."""

from __future__ import annotations

from sprout.seed.analyzer.transcript import TrajectoryView
from sprout.seed.envs.ezpoints.formula import TARGET, show, solutions, unused, value
from sprout.seed.envs.ezpoints.text import read_formula, read_numbers, write_actions

_MANY_INVALID = 1 / 3
_GENERAL = f"Add the numbers if their sum is {TARGET}, else multiply them; end with =."


def analyze(trajectory: TrajectoryView) -> dict[str, str]:
    """`{"episode_summary": ..., "episode_skill": ...}` from nothing but what the trajectory shows."""
    numbers = read_numbers(trajectory.steps[0].observation) if trajectory.steps else None
    ways = solutions(numbers) if numbers else []
    if numbers is None or not ways:
        return {"episode_summary": "The numbers are not shown.", "episode_skill": _GENERAL}
    last = trajectory.final_observation or trajectory.steps[-1].observation
    written = read_formula(last)
    way = next((way for way in ways if way[:-1] == written[:3]), ways[0])
    return {
        "episode_summary": _summary(numbers, written, trajectory),
        "episode_skill": write_actions(way),
    }


def _summary(numbers: tuple[int, int], written: list[str], trajectory: TrajectoryView) -> str:
    invalid = sum(not step.valid for step in trajectory.steps)
    if trajectory.success:
        return f"{show(written[:3])} made {TARGET}, with {invalid} impossible actions on the way."
    if invalid > _MANY_INVALID * len(trajectory.steps):
        return "Most actions were not possible: a number was written that no card had left."
    if left := unused(numbers, written):
        return f"The formula {show(written)} leaves out {' and '.join(left)}."
    found = value(written[:3]) if len(written) in (3, 5) else None
    if found is None:
        return f"{show(written)} is no formula of two numbers."
    if found == TARGET:
        return f"{show(written)} was right but never ended with =."
    return f"The formula {show(written[:3])} makes {found}, not {TARGET}."
