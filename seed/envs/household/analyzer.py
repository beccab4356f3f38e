"""The household world's rule-based hindsight analyzer: reads a trajectory, writes a summary and a skill."""

from sprout.seed.analyzer.transcript import TrajectoryView
from sprout.seed.envs.household.kinds import LAMP, LAMP_KIND, is_closed_kind, kind_of
from sprout.seed.envs.household.memory import Memory, parse_task
from sprout.seed.envs.household.skills import GO_FIRST, SEARCH_ON, STOP_REPEATING, Skill, write_skill
from sprout.seed.envs.household.world import Task

_MANY_INVALID = 1 / 3
_Claim = tuple[str, tuple[str, ...]]


def analyze(trajectory: TrajectoryView) -> dict[str, str]:
    """`{"episode_summary": ..., "episode_skill": ...}` from nothing but what the trajectory shows."""
    task = parse_task(trajectory.task)
    memory = _read(trajectory)
    return {
        "episode_summary": _summary(task, memory, trajectory.success),
        "episode_skill": write_skill(_skill(task, memory, trajectory)),
    }


def _read(trajectory: TrajectoryView) -> Memory:
    observations = [step.observation for step in trajectory.steps]
    if trajectory.final_observation is not None:
        observations.append(trajectory.final_observation)
    return Memory.of(observations)


def _found(task: Task, memory: Memory) -> list[tuple[str, str]]:
    """(object, first place) of the wanted objects in the order in which they were seen."""
    seen = [(name, place) for name, place in memory.first_seen.items() if kind_of(name) == task.object_kind]
    return seen[: task.count]


def _summary(task: Task, memory: Memory, success: bool) -> str:
    found = _found(task, memory)
    if success:
        return f"found {found[0][0]} in {found[0][1]} and did the task ." if found else "did the task ."
    if not found:
        return f"did not find {task.object_kind} ."
    if len(found) < task.count:
        return f"found {found[0][0]} in {found[0][1]} but not the other ."
    return f"found {found[0][0]} in {found[0][1]} but did not end the task ."


def _skill(task: Task, memory: Memory, trajectory: TrajectoryView) -> Skill:
    located = _found(task, memory)
    absent: list[_Claim] = []
    among: list[_Claim] = []
    if len(located) < task.count:
        _exclude(task.object_kind, memory, memory.receptacles, absent, among)
    elif task.family == "look-under-lamp":
        if LAMP in memory.first_seen:
            located.append((LAMP, memory.first_seen[LAMP]))
        else:
            open_places = [p for p in memory.receptacles if not is_closed_kind(kind_of(p))]
            _exclude(LAMP_KIND, memory, open_places, absent, among)
    target = _target(task, memory) if located else None
    process = task.process if target else None
    caution = _caution(trajectory, bool(located), bool(absent or among))
    return Skill(tuple(located), tuple(absent), tuple(among), process, target, caution)


def _exclude(kind: str, memory: Memory, places: list[str], absent: list[_Claim], among: list[_Claim]) -> None:
    """Say where the unseen object can be, or where it is not, whichever is shorter."""
    seen = tuple(place for place in places if place in memory.contents)
    unseen = tuple(place for place in places if place not in memory.contents)
    if unseen and len(unseen) < len(seen):
        among.append((kind, unseen))
    elif seen:
        absent.append((kind, seen))


def _target(task: Task, memory: Memory) -> str:
    if task.family == "look-under-lamp":
        return LAMP
    used = [place for name, place in memory.placed.items() if kind_of(name) == task.object_kind]
    fitting = [place for place in memory.receptacles if kind_of(place) == task.target_kind]
    return next((place for place in used if place in fitting), fitting[0])


def _caution(trajectory: TrajectoryView, located: bool, narrowed: bool) -> str | None:
    if trajectory.success:
        return None
    invalid = sum(not step.valid for step in trajectory.steps)
    if invalid > _MANY_INVALID * len(trajectory.steps):
        return STOP_REPEATING
    if located:
        return GO_FIRST
    return None if narrowed else SEARCH_ON
