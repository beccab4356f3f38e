"""What to watch of an update's skills: are they valid, short, free of loops and grounded, do they tell apart.

Skills can degenerate while the loss looks healthy, so every update reports these beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sprout.seed.analyzer.policy import OVERFLOW
from sprout.seed.trajectory import Skill, Trajectory

PHRASE = 4
_NAMES = re.compile(
    r"\b[a-z]+ \d+\b"  # numbered things: mug 1, cabinet 12
    r"|[a-z]+\[[^\]]+\]"  # bracketed commands: search[red shoes], click[buy now]
    r"|`[^`]+`|\"[^\"]+\"",  # quoted names
    re.IGNORECASE,
)


def skill_metrics(
    trajectories: Sequence[Trajectory],
    skills: Sequence[Skill],
    names: Callable[[str], set[str]] | None = None,
) -> dict[str, float]:
    """Quality of the skills of one update; lengths and rates are means over the valid ones.

    `names(text)` finds the named entities and commands of a text; the default knows numbered things,
    bracketed commands and quoted names. Skills that name nothing do not count in the grounding.
    """
    valid = [(t, s) for t, s in zip(trajectories, skills, strict=True) if s.valid]
    grounded = [grounding(skill.text, trajectory, names or named_things) for trajectory, skill in valid]
    return {
        "seed/skill_valid_rate": len(valid) / max(len(skills), 1),
        "seed/skill_overflow_rate": sum(s.problem == OVERFLOW for s in skills) / max(len(skills), 1),
        "seed/skill_tokens": _mean([skill.tokens for _, skill in valid]),
        "seed/skill_repeat_rate": _mean([repeat_rate(skill.text) for _, skill in valid]),
        "seed/skill_grounding": _mean([share for share in grounded if share is not None]),
    }


def repeat_rate(text: str, phrase: int = PHRASE) -> float:
    """Share of the text's phrases (`phrase` words) that have occurred in it before; 0 for a shorter text."""
    words = text.lower().split()
    phrases = [tuple(words[i : i + phrase]) for i in range(len(words) - phrase + 1)]
    return 1 - len(set(phrases)) / len(phrases) if phrases else 0.0


def named_things(text: str) -> set[str]:
    """Numbered things, bracketed commands and quoted names, in lower case."""
    return {match.group().strip('`"').lower() for match in _NAMES.finditer(text)}


def grounding(text: str, trajectory: Trajectory, names: Callable[[str], set[str]]) -> float | None:
    """Share of the things that a skill names which occur in its trajectory; None if it names nothing."""
    named = names(text)
    if not named:
        return None
    parts = [trajectory.task, trajectory.final_observation]
    parts += [part for turn in trajectory.turns for part in (turn.observation, turn.response)]
    seen = "\n".join(parts).lower()
    return sum(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", seen) is not None for name in named) / len(named)


def delta_by_outcome(
    deltas: Sequence[NDArray[np.floating] | None], success: Sequence[bool]
) -> dict[str, float]:
    """Mean Delta per token of successful and of failed trajectories, from per-turn arrays (None: no teacher).

    Delta that does not differ between the two says that the teacher rewards having a skill, not its content.
    """
    means = {}
    for name, wanted in (("success", True), ("failure", False)):
        chosen = [d for d, won in zip(deltas, success, strict=True) if d is not None and won is wanted]
        if chosen:
            means[f"seed/delta_{name}"] = float(np.concatenate(chosen).mean())
    return means


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
