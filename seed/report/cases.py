"""The analyzer audit's cases: trajectories with what the update saw of every token.

An update's files are read line by line, and only the cases that can still be shown are kept. Four rules pick
them in turn, so that rare and telling cases are there beside an unbiased sample: the largest |Delta| of a
token, the strongest disagreement of Delta with the outcome, an invalid skill, and a draw that depends on the
trajectory's id alone, so that it stays the same while a run goes on.
"""

from __future__ import annotations

import heapq
import itertools
import math
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from sprout.seed.report.curves import thinned
from sprout.seed.report.pieces import Pieces
from sprout.seed.run_dir import RunDir
from sprout.seed.scores import ScoredTurn, parse_scores
from sprout.seed.trajectory import Skill, Trajectory, TurnRecord, parse_trajectory

LONGEST_LINE = 16 * 2**20  # bytes of a line that is read
CASE_BYTES = 256 * 2**10  # a case that is longer as JSON is shown up to there
TEXT = 4000  # characters of an observation, a task or a skill
WITHOUT_SCORES = 4  # updates shown of a run that stored no scores
NOTES = 20  # problems listed
DELTA_BINS = np.linspace(-4, 4, 41)
GATE_BINS = np.linspace(0, 1, 21)


@dataclass(frozen=True)
class Limits:
    """What of a run's cases goes into the page: updates, cases of each, and bytes of all together."""

    updates: int = 24
    cases: int = 64
    bytes: int = 8 * 2**20


@dataclass
class Audit:
    """Cases of one run; `played` trajectories were looked at. `notes` say what could not be read."""

    cases: list[dict[str, Any]] = field(default_factory=list)
    histograms: list[dict[str, Any]] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    played: int = 0
    scored: bool = False
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say it on the page and on stderr; of many problems the first."""
        if len(self.notes) < NOTES:
            self.notes.append(text if len(self.notes) < NOTES - 1 else "there are more such problems")
            warnings.warn(self.notes[-1], stacklevel=2)


def audit(folder: RunDir, name: str, pieces: Pieces, limits: Limits) -> Audit:
    """The cases of the run called `name`, from updates spread over all that have scores."""
    stored = sorted(int(file.stem) for file in (folder.root / "scores").glob("[0-9]*.jsonl"))
    found = Audit(scored=bool(stored))
    most = limits.updates if stored else WITHOUT_SCORES
    everything = stored or sorted(int(f.stem) for f in (folder.root / "trajectories").glob("[0-9]*.jsonl"))
    found.updates, _ = thinned(everything, most)
    for update in found.updates:
        room = limits.bytes // len(found.updates)
        for case in _Update(folder, update, pieces, found).cases(limits.cases):
            case["id"] = f"{name}/{update}/{case['id']}"
            room -= len(orjson.dumps(case))
            if room < 0:
                break
            found.cases.append(case)
    return found


class _Update:
    """One update's trajectories and their scores."""

    def __init__(self, folder: RunDir, update: int, pieces: Pieces, found: Audit) -> None:
        self._folder, self._update, self._pieces, self._found = folder, update, pieces, found

    def cases(self, most: int) -> list[dict[str, Any]]:
        """At most so many cases, the ones to drop last first; adds the update's histograms."""
        picks = {name: _Best(most, rule) for name, rule in RULES.items()}
        histogram = _Histogram()
        for trajectory, scores in self._scored():
            self._found.played += 1
            histogram.add(trajectory, scores)
            measured = _Measured(trajectory, scores)
            for pick in picks.values():
                pick.offer(measured)
        if self._found.scored:
            self._found.histograms.append({"update": self._update, **histogram.record()})
        return [_case(measured, name, self._pieces) for name, measured in _in_turn(picks, most)]

    def _scored(self) -> Iterator[tuple[Trajectory, list[ScoredTurn]]]:
        """Every trajectory with its turns' scores; none for one that the update left out."""
        by_trajectory: dict[str, list[ScoredTurn]] = defaultdict(list)
        for score in self._scores():
            by_trajectory[score.trajectory].append(score)
        for trajectory in self._trajectories():
            scores = by_trajectory.pop(trajectory.id, [])
            if not _fit(trajectory, scores):
                self._found.note(
                    f"update {self._update}: the scores of {trajectory.id} do not fit its tokens"
                )
                scores = []
            yield trajectory, scores

    def _trajectories(self) -> Iterator[Trajectory]:
        file = self._folder.trajectories(self._update)
        if not file.is_file():
            self._found.note(f"{file} does not exist, so update {self._update} has no cases")
            return
        for place, line in self._lines(file):
            try:
                yield parse_trajectory(line, place)
            except ValueError as error:
                self._found.note(f"left out: {error}")

    def _scores(self) -> Iterator[ScoredTurn]:
        file = self._folder.scores(self._update)
        if not file.is_file():
            return
        for place, line in self._lines(file):
            try:
                yield parse_scores(line, place)
            except ValueError as error:
                self._found.note(f"left out: {error}")

    def _lines(self, file: Path) -> Iterator[tuple[str, bytes]]:
        with file.open("rb") as handle:
            for number in itertools.count(1):
                line = handle.readline(LONGEST_LINE + 1)
                if not line:
                    return
                if len(line) <= LONGEST_LINE:
                    yield f"{file}:{number}", line
                    continue
                self._found.note(f"left out: {file}:{number} is longer than {LONGEST_LINE // 2**20} MiB")
                while line and not line.endswith(b"\n"):
                    line = handle.readline(LONGEST_LINE)


class _Measured:
    """A trajectory, its scores, and what the rules look at."""

    def __init__(self, trajectory: Trajectory, scores: list[ScoredTurn]) -> None:
        self.trajectory, self.scores = trajectory, scores
        delta = _values(trajectory, scores, "delta")
        self.delta_mean = float(delta.mean()) if len(delta) else None
        self.delta_max = float(np.abs(delta).max()) if len(delta) else None
        self.draw = zlib.crc32(f"{trajectory.update}/{trajectory.id}".encode())

    @property
    def disagreement(self) -> float | None:
        """|mean Delta| where the skill speaks for a failure or against a success."""
        if self.delta_mean is None or self.trajectory.reward is None:
            return None
        against = -self.delta_mean if self.trajectory.success else self.delta_mean
        return against if against > 0 else None


Rule = Callable[[_Measured], float | None]
RULES: dict[str, Rule] = {
    "largest |Delta|": lambda measured: measured.delta_max,
    "disagreement": lambda measured: measured.disagreement,
    "invalid skill": lambda measured: (
        measured.draw if measured.trajectory.skill and not measured.trajectory.skill.valid else None
    ),
    "random": lambda measured: measured.draw,
}


class _Best:
    """The `most` items of highest value, best first."""

    def __init__(self, most: int, rule: Rule) -> None:
        self._most, self._rule, self._number = most, rule, itertools.count()
        self._heap: list[tuple[float, int, _Measured]] = []

    def offer(self, measured: _Measured) -> None:
        """Keep it if it is among the best; a rule's None keeps it out."""
        value = self._rule(measured)
        if value is None:
            return
        heapq.heappush(self._heap, (value, -next(self._number), measured))
        if len(self._heap) > self._most:
            heapq.heappop(self._heap)

    def best_first(self) -> list[_Measured]:
        return [measured for *_, measured in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


def _in_turn(picks: dict[str, _Best], most: int) -> Iterator[tuple[str, _Measured]]:
    """Rule by rule the best that is not taken yet, until there are `most`."""
    queues = {name: iter(pick.best_first()) for name, pick in picks.items()}
    taken: set[str] = set()
    while queues and len(taken) < most:
        for name in list(queues):
            measured = next((m for m in queues[name] if m.trajectory.id not in taken), None)
            if measured is None:
                del queues[name]
            elif len(taken) < most:
                taken.add(measured.trajectory.id)
                yield name, measured


class _Histogram:
    """Tokens of an update by Delta and by gate; what lies outside counts in the outermost bins."""

    def __init__(self) -> None:
        self._counts = {"delta": np.zeros(len(DELTA_BINS) - 1), "gate": np.zeros(len(GATE_BINS) - 1)}

    def add(self, trajectory: Trajectory, scores: Sequence[ScoredTurn]) -> None:
        for name, bins in (("delta", DELTA_BINS), ("gate", GATE_BINS)):
            values = _values(trajectory, scores, name)
            self._counts[name] += np.histogram(np.clip(values, bins[0], bins[-1]), bins)[0]

    def record(self) -> dict[str, list[int]]:
        return {name: counts.astype(int).tolist() for name, counts in self._counts.items()}


def _fit(trajectory: Trajectory, scores: Sequence[ScoredTurn]) -> bool:
    """Whether every score is about a turn that is there and has a value for each of its action tokens."""
    for score in scores:
        if not 0 <= score.turn < len(trajectory.turns):
            return False
        columns = (score.l_theta, score.l_skill, score.delta, score.gate, score.advantage)
        tokens = len(trajectory.turns[score.turn].action)
        if any(column is not None and len(column) != tokens for column in columns):
            return False
    return True


def _values(trajectory: Trajectory, scores: Sequence[ScoredTurn], name: str) -> NDArray[np.float64]:
    """The known values of one column, over the tokens that the policy produced."""
    parts = [np.empty(0)]
    for score in scores:
        column = getattr(score, name)
        if column is not None:
            values = np.array(column, np.float64)
            parts.append(values[np.isfinite(values) & trajectory.turns[score.turn].mask])
    return np.concatenate(parts)


def _case(measured: _Measured, why: str, pieces: Pieces) -> dict[str, Any]:
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
