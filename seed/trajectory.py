"""Trajectories on disk and in memory: pydantic records, one JSON object a line.

A turn's context mostly repeats the one before it, so a turn stores how many ids it shares with the previous
turn's context and action, and the rest. Files grow with the tokens of an episode, not with their square.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sprout.engine import parallel
from sprout.engine.files import replace_file

SCHEMA_VERSION = 1
Ids = NDArray[np.int64]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class Record(BaseModel):
    """A line's part: refuses fields that this version does not know."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null")


class Skill(Record):
    """What an analyzer wrote about one trajectory. Only `text` of a valid skill is ever shown to a policy."""

    text: str = ""
    summary: str = ""
    valid: bool = True
    analyzer: str
    raw: str = ""
    tokens: int = 0
    problem: str = ""


class TurnRecord(Record):
    """One observation, the response sampled after it, and what came of it.

    The first `shared` context ids are those of the previous turn's context + action; `tail` is the rest.
    `logprobs` are the sampler's, one per id of `action`; `mask` marks the ids that the policy produced.
    `command` is the part of the response that the environment acted on (empty: it found none).
    `prompt_skill` is the skill text that the context of this turn holds (empty: none).
    """

    observation: str
    response: str
    command: str
    shared: int
    tail: list[TokenId]
    action: list[TokenId]
    logprobs: list[float]
    mask: list[bool]
    finished: Literal["stop", "length"]
    well_formed: bool
    admissible: bool
    reward: float = 0.0
    prompt_skill: str = ""

    @model_validator(mode="after")
    def _lengths_agree(self) -> TurnRecord:
        lengths = {"logprobs": len(self.logprobs), "mask": len(self.mask)}
        for name, length in lengths.items():
            if length != len(self.action):
                raise ValueError(f"{name} has {length} values for {len(self.action)} action ids")
        return self


class Trajectory(Record):
    """One episode. `update` is the policy version that sampled it; members of a group share task and `group`.

    `reward` None (or NaN): no outcome is known. `rejected` names why the episode must not be trained on.
    `teacher_skill` is the exact skill text of the teacher context, None when there was no teacher.
    """

    schema_version: Literal[1] = 1
    update: int
    group: str
    member: int
    env: str
    split: str
    seed: int
    task: str
    family: str
    system: str = ""
    turns: list[TurnRecord]
    final_observation: str = ""
    reward: float | None
    success: bool
    truncated: bool = False
    rejected: str = ""
    skill: Skill | None = None
    teacher_skill: str | None = None
    skill_donor: str | None = None

    @property
    def id(self) -> str:
        """Unique within an update: group and member."""
        return f"{self.group}/{self.member}"

    @property
    def usable(self) -> bool:
        """Has a finite reward, at least one turn, and was not rejected."""
        known = self.reward is not None and bool(np.isfinite(self.reward))
        return known and not self.rejected and bool(self.turns)

    def contexts(self) -> list[Ids]:
        """The context ids of every turn, rebuilt from the shared lengths and tails."""
        contexts: list[Ids] = []
        previous = np.empty(0, np.int64)
        for turn in self.turns:
            context = np.concatenate([previous[: turn.shared], np.asarray(turn.tail, np.int64)])
            contexts.append(context)
            previous = np.concatenate([context, np.asarray(turn.action, np.int64)])
        return contexts


def split_context(context: Ids, previous: Ids) -> tuple[int, list[int]]:
    """`(shared, tail)` of a context against the previous turn's context + action (empty at first)."""
    length = min(len(context), len(previous))
    differs = np.flatnonzero(context[:length] != previous[:length])
    shared = int(differs[0]) if len(differs) else length
    return shared, context[shared:].tolist()


@parallel.on_main
def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> None:
    """Writes the whole file or nothing.

    Raises OSError naming the file when the disk refuses; an earlier file of that name is then still whole.
    """
    path = Path(path)
    content = b"".join(orjson.dumps(trajectory.model_dump()) + b"\n" for trajectory in trajectories)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise OSError(error.errno, f"cannot write trajectories: {error.strerror}", str(path)) from error


def read_trajectories(*paths: str | Path) -> Iterator[Trajectory]:
    """Streams the trajectories of one or more files.

    Raises FileNotFoundError for a missing file, and ValueError with file and line for a line that is not
    JSON, has an unknown schema version, or does not fit the record.
    """
    for path in map(Path, paths):
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such trajectory file")
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                yield parse_trajectory(line, f"{path}:{number}")


def parse_trajectory(line: bytes, place: str) -> Trajectory:
    """The trajectory of one line. Raises ValueError, naming `place`, for anything else."""
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{place}: not a JSON line ({error}); delete it or collect again") from None
    version = values.get("schema_version") if isinstance(values, dict) else None
    if version != SCHEMA_VERSION:
        raise ValueError(f"{place}: schema_version {version!r}; this release reads {SCHEMA_VERSION}")
    try:
        trajectory = Trajectory.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place}: {key}: {first['msg'].removeprefix('Value error, ')}") from None
    _check_shared(trajectory.turns, place)
    return trajectory


def _check_shared(turns: Sequence[TurnRecord], place: str) -> None:
    available = 0
    for number, turn in enumerate(turns):
        if not 0 <= turn.shared <= available:
            raise ValueError(f"{place}: turns.{number}.shared is {turn.shared}; {available} ids precede it")
        available = turn.shared + len(turn.tail) + len(turn.action)
