"""Warnings about a run that goes wrong while its loss looks healthy; each kind is given once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ENTROPY_LEFT = 0.1
VALIDITY_LOST = 0.2
TEACHER_BEHIND = 0.05
VALID_SKILLS = 0.5


@dataclass
class Alarms:
    """`first` holds the metrics of the run's first update, `given` the kinds that were given already."""

    first: dict[str, float] = field(default_factory=dict)
    given: list[str] = field(default_factory=list)

    def check(self, metrics: Mapping[str, Any]) -> list[str]:
        """Texts of the alarms that these metrics of an update raise for the first time."""
        for name in ("actor/entropy", "episode/valid_action_ratio"):
            self.first.setdefault(name, float(metrics[name]))
        raised = {kind: text for kind, text in self._texts(metrics).items() if kind not in self.given}
        self.given += raised
        return list(raised.values())

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; `Alarms(**state)` goes on from it."""
        return {"first": dict(self.first), "given": list(self.given)}

    def _texts(self, metrics: Mapping[str, Any]) -> dict[str, str]:
        texts = {}
        entropy, valid = metrics["actor/entropy"], metrics["episode/valid_action_ratio"]
        if entropy < ENTROPY_LEFT * self.first["actor/entropy"]:
            texts["entropy"] = (
                f"entropy has fallen to {entropy:.3g} from {self.first['actor/entropy']:.3g}: the policy may "
                "be collapsing; lower train.lr or objective.lambda_opd, or raise objective.entropy_coef"
            )
        if valid < self.first["episode/valid_action_ratio"] - VALIDITY_LOST:
            texts["validity"] = (
                f"only {valid:.0%} of actions are valid, {self.first['episode/valid_action_ratio']:.0%} at "
                "first; raise objective.invalid_action_penalty or set objective.opd_invalid_actions=drop"
            )
        if metrics.get("seed/skill_valid_rate", 1.0) < VALID_SKILLS:
            texts["skills"] = (
                f"only {metrics['seed/skill_valid_rate']:.0%} of skills are well-formed; see "
                "skill.problem in the trajectories"
            )
        if metrics.get("val/teacher_minus_student", 0.0) < -TEACHER_BEHIND:
            less = -metrics["val/teacher_minus_student"]
            texts["teacher"] = (
                f"with its own skills the policy succeeds {less:.0%} less often than without: the teacher "
                "misleads; lower objective.lambda_opd"
            )
        return texts
