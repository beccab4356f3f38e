"""The training methods by name: each is a small patch of the configuration, nothing else.

A method's fields win over the recipe's: `compare: [grpo]` is this recipe with only these fields changed.
Sources: SEED (arXiv 2607.14777) and the methods and ablations it compares with.
"""

from __future__ import annotations

from typing import Any

GRPO = {"objective.lambda_opd": 0.0, "analyzer.kind": "none", "objective.skill_source": "own"}

METHODS: dict[str, dict[str, Any]] = {
    # outcome RL and gated distillation from the policy's own hindsight skills
    "seed": {"objective.skill_source": "own"},
    # outcome RL alone
    "grpo": GRPO,
    # GRPO for as long as this run's own method took, when compared with it
    "grpo-wallclock": GRPO,
    # OPSD-constant: every token weighs 0.5
    "beta0": {"objective.beta": 0.0},
    "opsd-constant": {"objective.beta": 0.0},
    # controls: an empty skill (teacher context equals the student's), a skill of another task
    "null-skill": {"objective.skill_source": "null", "analyzer.kind": "none"},
    "shuffled-skill": {"objective.skill_source": "shuffled"},
    # SEED's ablation: skills from a file instead of hindsight
    "static-skill": {"analyzer.kind": "static", "objective.skill_source": "own"},
    # SDAR: the same loss, skills from a file, no analysis stage
    "sdar": {"analyzer.kind": "static", "objective.skill_source": "own", "sft.epochs": 0},
    # SEED without Stage 1
    "no-sft": {"sft.epochs": 0},
    # Skill-SD: importance-weighted k3 towards the skill context instead of the gated term
    "skill-sd": {"objective.lambda_opd": 0.0, "objective.skill_kl_coef": 0.001},
    # OPID, episode level: Delta is added to the advantages
    "opid": {"objective.lambda_opd": 0.0, "objective.delta_advantage": 0.1},
    # RLSD: Delta scales the advantages, less and less
    "rlsd": {"objective.lambda_opd": 0.0, "objective.delta_scale": 0.5},
    # GRPO with a skill in the training prompt, and none at evaluation
    "skill-grpo": {**GRPO, "train.skill": "static"},
    # a skill in the prompt at evaluation, GRPO in training
    "skill-prompt": {**GRPO, "eval.skill": "static"},
}


def method_patch(name: str) -> dict[str, Any]:
    """Dotted fields that the method sets. Raises ValueError for a name that is not a method."""
    if name not in METHODS:
        raise ValueError(f"objective.name: no method {name!r}; one of {', '.join(sorted(METHODS))}")
    return METHODS[name]
