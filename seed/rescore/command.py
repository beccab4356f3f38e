"""Reads, asks for skills, scores, counts and writes, one chunk of trajectories after the other."""

from __future__ import annotations

import hashlib
import resource
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from sprout.engine import parallel
from sprout.engine.progress import progress
from sprout.seed.analyzer import Analyzer
from sprout.seed.analyzer.build import build_analyzer
from sprout.seed.envs import environment_class, known_environments
from sprout.seed.policy import Policy, load_policy
from sprout.seed.rescore.kinds import TokenTexts
from sprout.seed.rescore.output import Output
from sprout.seed.rescore.readers import Line, input_files, parse, raw_lines
from sprout.seed.rescore.score import NULL, OWN, SHUFFLED, ScoredTurn, Work, score, skill_texts
from sprout.seed.rescore.summary import Summary, outcome
from sprout.seed.schema import Config
from sprout.seed.trajectory import Skill, Trajectory

FROM_FILE = "file"
SKILL_SOURCES = (FROM_FILE, "policy", "openai", "static", "scripted")


@dataclass(frozen=True)
class Options:
    """What is read and how; `null` is the text of the null-skill control, None for no controls."""

    trajectories: Path
    skills: str = FROM_FILE
    format: str = "auto"
    system: str = ""
    null: str | None = "nothing"
    skip_bad: bool = False
    max_line_bytes: int = 64 * 2**20
    chunk: int = 16


@dataclass(frozen=True)
class _Place:
    """A line that has been read, and which one it was."""

    file: str
    line: int
    digest: str


def rescore(
    options: Options, target: Path, config: Config, parquet: bool, console: Console
) -> dict[str, Any]:
    """Score everything that is left to score; the summary. Raises ValueError as one line for bad input."""
    if options.skills not in SKILL_SOURCES:
        raise ValueError(f"--skills {options.skills}: should be one of {', '.join(SKILL_SOURCES)}")
    if options.skills == "static" and config.analyzer.static_path is None:
        raise ValueError("--skills static needs a file of skills: analyzer.static_path=FILE")
    input_files(options.trajectories)
    settings = {**_plain(options), "parquet": parquet, "config": config.model_dump(mode="json")}
    output = Output(target, settings, parquet)
    return Rescoring(options, output, config, console).run()


class Rescoring:
    """One run over the input, from where the output folder stands."""

    def __init__(self, options: Options, output: Output, config: Config, console: Console) -> None:
        self._options, self._output, self._config, self._console = options, output, config, console
        self._policy: Policy = load_policy(config.model.path, config)
        if parallel.world_size() > 1:
            raise ValueError("rescore works in one process: start it without torchrun")
        self._texts = TokenTexts(self._policy.chat)
        self._summary = Summary(config.objective.beta, self._texts)
        self._work, self._left_out = Work(), Counter[str]()
        self._last: _Place | None = None
        self._analyzers: dict[str, Analyzer] = {}
        self._restore()

    def run(self) -> dict[str, Any]:
        """The summary after the last line."""
        places = self._read()
        with progress("rescore", None, console=self._console) as advance:
            while chunk := list(islice(places, self._options.chunk)):
                self._advance([trajectory for trajectory, _ in chunk], chunk[-1][1])
                advance(len(chunk))
        self._output.write_summary(self._record())
        return self._record()

    def _restore(self) -> None:
        state = self._output.state
        if not state:
            return
        self._summary.restore(state["summary"])
        self._work, self._left_out = Work(**state["work"]), Counter(state["left_out"])
        self._last = _Place(**state["last"])
        place = f"{self._last.file}:{self._last.line}"
        self._console.print(f"rescore: going on after {place}")

    def _read(self) -> Iterator[tuple[Trajectory, _Place]]:
        """Trajectories after the last line that is done; bad lines stop the run, or are counted."""
        last = self._last
        for file in input_files(self._options.trajectories):
            for place, number, content in raw_lines(file, self._options.max_line_bytes):
                if last is not None:
                    if (file.name, number) == (last.file, last.line):
                        _check_same(last, content, place)
                        last = None
                    continue
                where = Line(
                    place, number, content, self._policy.chat, self._config.rollout, self._options.system
                )
                try:
                    trajectory = parse(where, self._options.format)
                except ValueError as error:
                    if not self._options.skip_bad:
                        raise
                    self._left_out["bad_line"] += 1
                    warnings.warn(f"skipped: {error}", stacklevel=2)
                    continue
                yield trajectory, _Place(file.name, number, _digest(content))
        if last is not None:
            raise ValueError(
                f"{self._options.trajectories} no longer holds {last.file}:{last.line}, the last line that "
                "is scored; choose another output folder"
            )

    def _advance(self, trajectories: list[Trajectory], last: _Place) -> None:
        skills = self._skills(trajectories)
        texts = skill_texts(trajectories, skills, self._options.null, self._config.run.seed)
        scored = score(self._policy, trajectories, texts, self._config)
        self._summary.add(scored.turns)
        self._work.add(scored.work)
        self._left_out.update(scored.left_out)
        shown = {id(t): text or "" for t, text in zip(trajectories, texts[OWN], strict=True)}
        state = {
            "summary": self._summary.state(),
            "work": asdict(self._work),
            "left_out": dict(self._left_out),
            "last": asdict(last),
        }
        records = [self._token_record(turn, shown[id(turn.trajectory)]) for turn in scored.turns]
        self._output.write(records, state, self._record())

    def _skills(self, trajectories: list[Trajectory]) -> list[Skill | None]:
        if self._options.skills == FROM_FILE:
            return [trajectory.skill for trajectory in trajectories]
        environments = {trajectory.env for trajectory in trajectories}
        skills: list[Skill | None] = [None] * len(trajectories)
        for name in sorted(environments):
            chosen = [i for i, trajectory in enumerate(trajectories) if trajectory.env == name]
            written = self._analyzer(name).analyze([trajectories[i] for i in chosen])
            for i, skill in zip(chosen, written, strict=True):
                skills[i] = skill
        return skills

    def _analyzer(self, environment: str) -> Analyzer:
        """The analyzer with the environment's own instructions, if it is one that is registered."""
        if environment not in self._analyzers:
            known = environment_class(environment) if environment in known_environments() else None
            policy, config = self._policy, self._config
            self._analyzers[environment] = build_analyzer(
                self._options.skills, config, policy.chat, policy.generator(config), known
            )
        return self._analyzers[environment]

    def _token_record(self, turn: ScoredTurn, skill: str) -> dict[str, Any]:
        action = turn.trajectory.turns[turn.number].action
        delta = turn.delta(OWN)
        known = outcome(turn.trajectory) != "unknown"
        controls = {f"delta_{v}": turn.delta(v).tolist() for v in (NULL, SHUFFLED) if v in turn.teachers}
        return {
            "trajectory": turn.trajectory.id,
            "turn": turn.number,
            "success": turn.trajectory.success if known else None,
            "skill": skill,
            "token": list(action),
            "text": [self._texts.text(token) for token in action],
            "l_theta": turn.student.tolist(),
            "l_skill": turn.teachers[OWN].tolist(),
            "delta": delta.tolist(),
            "gate": self._summary.gate(delta).tolist(),
            **controls,
        }

    def _record(self) -> dict[str, Any]:
        return {
            **self._summary.record(),
            "left_out": dict(self._left_out),
            "throughput": {**self._work.record(), "peak_memory_mb": _peak_memory_mb(self._policy)},
        }


def _peak_memory_mb(policy: Policy) -> float:
    """Of the device that computes: CUDA's allocator, else resident memory of the process (10^6 bytes)."""
    if policy.decoder.device.type == "cuda":
        return torch.cuda.max_memory_allocated(policy.decoder.device) / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _check_same(last: _Place, content: bytes, place: str) -> None:
    if _digest(content) != last.digest:
        raise ValueError(f"{place} has changed since it was scored; choose another output folder")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _plain(options: Options) -> dict[str, Any]:
    """Settings as JSON values; what does not change results is left out."""
    values = asdict(options) | {"trajectories": str(options.trajectories)}
    return {key: value for key, value in values.items() if key not in ("skip_bad", "max_line_bytes")}
