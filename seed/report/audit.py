"""The analyzer audit of a run: cases of some updates, and how Delta and gate are distributed in each.

An update's scores are held while its trajectories are read line by line, and of these only the ones that may
still become cases are kept. What an update gave does not depend on the others, so that a permanent link to a
case stays good while the run goes on, and a served report reads each update once.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console

from sprout.engine.progress import progress
from sprout.seed.report.case import case_record
from sprout.seed.report.curves import thinned
from sprout.seed.report.picks import RULES, Best, Measured, in_turn, known_values
from sprout.seed.report.pieces import Pieces
from sprout.seed.run_dir import RunDir
from sprout.seed.scores import ScoredTurn, parse_scores
from sprout.seed.trajectory import Trajectory, parse_trajectory

LONGEST_LINE = 16 * 2**20  # bytes of a line that is read
WITHOUT_SCORES = 4  # updates shown of a run that stored no scores
NOTES = 20  # problems listed
DELTA_BINS = np.linspace(-4, 4, 41)
GATE_BINS = np.linspace(0, 1, 21)


@dataclass(frozen=True)
class Limits:
    """What of a run's cases goes into the page: updates, cases of each, and bytes of all together."""

    updates: int = 12
    cases: int = 64
    bytes: int = 16 * 2**20

    @property
    def update_bytes(self) -> int:
        """Of one update, the same however many there are; `thinned` may keep one update more."""
        return self.bytes // (self.updates + 1)


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

    def add(self, other: Audit) -> None:
        """Another update's part."""
        self.cases += other.cases
        self.histograms += other.histograms
        self.played += other.played
        self.notes += other.notes[: NOTES - len(self.notes)]


Known = dict[tuple[Path, int], tuple[Any, Audit]]  # by run and update: state of its files, what they gave


def audit(
    folder: RunDir, name: str, pieces: Pieces, limits: Limits, console: Console, known: Known | None = None
) -> Audit:
    """The cases of the run called `name`, from updates spread over all that have scores.

    Updates in `known` whose files have not changed are not read again; the others are added to it.
    """
    known = {} if known is None else known
    stored = _updates(folder.root / "scores")
    found = Audit(scored=bool(stored))
    everything = stored or _updates(folder.root / "trajectories")
    found.updates, _ = thinned(everything, limits.updates if stored else WITHOUT_SCORES)
    with progress(f"{name}: cases", len(found.updates), console=console) as advance:
        for update in found.updates:
            files = (folder.scores(update), folder.trajectories(update))
            state = (name, limits, pieces.known, [_stamp(file) for file in files])
            if known.get((folder.root, update), (None,))[0] != state:
                known[folder.root, update] = (state, _Update(folder, update, pieces).audit(name, limits))
            found.add(known[folder.root, update][1])
            advance()
    for run, update in list(known):
        if run == folder.root and update not in found.updates:
            del known[run, update]
    return found


def _updates(files: Path) -> list[int]:
    return sorted(int(file.stem) for file in files.glob("[0-9]*.jsonl"))


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(file)
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_size


class _Update:
    """One update's trajectories and their scores."""

    def __init__(self, folder: RunDir, update: int, pieces: Pieces) -> None:
        self._folder, self._update, self._pieces = folder, update, pieces
        self._found = Audit()

    def audit(self, name: str, limits: Limits) -> Audit:
        """Its cases, as many as the limits allow, and its histograms."""
        picks = {rule: Best(limits.cases, value) for rule, value in RULES.items()}
        histogram = _Histogram()
        for trajectory, scores in self._scored():
            self._found.played += 1
            histogram.add(trajectory, scores)
            measured = Measured(trajectory, scores)
            for pick in picks.values():
                pick.offer(measured)
        if self._folder.scores(self._update).is_file():
            self._found.histograms.append({"update": self._update, **histogram.record()})
        room = limits.update_bytes
        for rule, measured in in_turn(picks, limits.cases):
            case = case_record(measured, rule, self._pieces)
            case["id"] = f"{name}/{self._update}/{case['id']}"
            room -= len(orjson.dumps(case))
            if room < 0:
                break
            self._found.cases.append(case)
        return self._found

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


class _Histogram:
    """Tokens of an update by Delta and by gate; what lies outside counts in the outermost bins."""

    def __init__(self) -> None:
        self._counts = {"delta": np.zeros(len(DELTA_BINS) - 1), "gate": np.zeros(len(GATE_BINS) - 1)}

    def add(self, trajectory: Trajectory, scores: Sequence[ScoredTurn]) -> None:
        for name, bins in (("delta", DELTA_BINS), ("gate", GATE_BINS)):
            values = known_values(trajectory, scores, name)
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
