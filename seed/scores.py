"""Per-token scores on disk: what an update saw of every action token it trained on.

One JSON object per turn, in the order of the trajectories: `trajectory` (its id), `turn` (from 0) and, per
action token, l_theta, l_skill, delta, gate and advantage. Without a teacher l_skill, delta and gate are null;
so is a single value that is not finite. Trajectories that the update left out have no lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson
from pydantic import BaseModel, ValidationError

from sprout.engine import parallel
from sprout.engine.files import replace_file
from sprout.engine.update import TurnScores

Values = list[float | None]
OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


@parallel.on_main
def write_scores(path: Path, owners: Iterable[tuple[str, int]], scores: Iterable[TurnScores]) -> None:
    """Writes the whole file or nothing; `owners` are the (trajectory id, turn) of `scores`."""
    lines = (
        orjson.dumps(
            {
                "trajectory": trajectory,
                "turn": turn,
                "l_theta": score.logprob,
                "l_skill": score.skill_logprob,
                "delta": score.delta,
                "gate": score.gate,
                "advantage": score.advantage,
            },
            option=OPTIONS,
        )
        for (trajectory, turn), score in zip(owners, scores, strict=True)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, b"".join(lines))


class ScoredTurn(BaseModel):
    """One line: the scores of one turn's action tokens."""

    trajectory: str
    turn: int
    l_theta: Values
    l_skill: Values | None
    delta: Values | None
    gate: Values | None
    advantage: Values


def parse_scores(line: bytes, place: str) -> ScoredTurn:
    """The scores of one line. Raises ValueError, naming `place`, for anything else."""
    try:
        return ScoredTurn.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place}: {key or 'not the scores of a turn'}: {first['msg']}") from None
