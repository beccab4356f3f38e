"""Analyzers that need no model: the environment's own rules, and a file of skills."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from sprout.engine.chat import ChatFormat
from sprout.seed.analyzer.prompt import SKILL, SUMMARY, format_answer, view_of
from sprout.seed.analyzer.transcript import TrajectoryView
from sprout.seed.trajectory import Skill, Trajectory

Rules = Callable[[TrajectoryView], Mapping[str, str]]


class ScriptedAnalyzer:
    """Asks the environment class: `scripted_analyzer(view)` gives {"episode_summary", "episode_skill"}."""

    name = "scripted"

    def __init__(self, environment: Any, chat: ChatFormat, *, terminal_observation: bool = True) -> None:
        rules = getattr(environment, "scripted_analyzer", None)
        if rules is None:
            raise ValueError(f"{environment} has no scripted_analyzer; choose another analyzer for it")
        self._rules: Rules = rules
        self._chat = chat
        self._terminal_observation = terminal_observation

    def analyze(self, trajectories: list[Trajectory]) -> list[Skill]:
        """One skill per trajectory."""
        return [self._skill(trajectory) for trajectory in trajectories]

    def _skill(self, trajectory: Trajectory) -> Skill:
        found = self._rules(view_of(trajectory, self._terminal_observation))
        summary, text = found[SUMMARY], found[SKILL]
        return Skill(
            text=text,
            summary=summary,
            valid=bool(text),
            analyzer=self.name,
            raw=format_answer(summary, text),
            tokens=len(self._chat.encode(text)),
            problem="" if text else f"{SKILL} is empty",
        )


class StaticAnalyzer:
    """Gives every trajectory its family's skill, or the one named `default`.

    From a YAML or JSON file or, without one, from what the environment class brings as `static_skills`.
    """

    name = "static"

    def __init__(self, path: str | Path | None, chat: ChatFormat, environment: Any = None) -> None:
        self._chat = chat
        self._source = path or f"{getattr(environment, '__name__', environment)}.static_skills"
        self._skills = _own_skills(environment) if path is None else _read_skills(Path(path))

    def analyze(self, trajectories: list[Trajectory]) -> list[Skill]:
        """One skill per trajectory. Raises ValueError for a family without a skill and no default."""
        return [self.skill(trajectory.family) for trajectory in trajectories]

    def skill(self, family: str) -> Skill:
        """The skill of a task family."""
        text = self._skills.get(family, self._skills.get("default"))
        if text is None:
            raise ValueError(f"{self._source}: no skill for family {family!r} and no `default`")
        return Skill(text=text, analyzer=self.name, raw=text, tokens=len(self._chat.encode(text)))


def _own_skills(environment: Any) -> Mapping[str, str]:
    skills: Mapping[str, str] | None = getattr(environment, "static_skills", None)
    if skills is None:
        raise ValueError(f"{environment} brings no static_skills; set analyzer.static_path to a file")
    return skills


def _read_skills(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such skill file; set analyzer.static_path")
    try:
        found = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML or JSON: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict) or not all(isinstance(text, str) and text for text in found.values()):
        raise ValueError(f"{path}: expected a mapping from family (or `default`) to a skill text")
    return {str(family): text for family, text in found.items()}
