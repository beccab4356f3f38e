"""A run on disk: where everything lies, which configuration it belongs to, and which stages are done.

    config.yaml              the resolved configuration; versions, machine and git revision as comments
    stage1/collected/        trajectories of the base policy, one file per chunk of tasks
    stage1/annotated/        the same trajectories with their skills
    stage1/sft/, base/       checkpoints and metrics of the two supervised stages
    checkpoints/sft/model/   the Stage-1 model: start of Stage 2 and reference of its KL term
    checkpoints/step-000040/ Stage 2; metrics.jsonl, trajectories/000041.jsonl, evals/000040.json beside it
    scores/000040.jsonl      every train.scores_every updates: what the update saw of each token
    compare/METHOD/          the same run under another method, a run folder of its own
    answers.jsonl            what an analyzer's server answered, so that nothing is asked twice
    stages/STAGE.json        whether the stage is finished, and what came out
    summary.json
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from sprout.engine import parallel
from sprout.engine.files import replace_file
from sprout.seed.config import dump_config, load_config
from sprout.seed.schema import Config

INCIDENTAL = (
    "run.resume", "run.name", "run.dir",
    "env.workers", "env.step_timeout_s", "env.reset_timeout_s", "train.reference_offload",
)  # fmt: skip


@dataclass(frozen=True)
class RunDir:
    """Paths and markers of one run; nothing is created before it is needed."""

    root: Path

    @property
    def config_file(self) -> Path:
        return self.root / "config.yaml"

    @property
    def base(self) -> Path:
        return self.root / "base"

    @property
    def collected(self) -> Path:
        return self.root / "stage1" / "collected"

    @property
    def annotated(self) -> Path:
        return self.root / "stage1" / "annotated"

    @property
    def sft(self) -> Path:
        return self.root / "stage1" / "sft"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def stage1_model(self) -> Path:
        return self.checkpoints / "sft" / "model"

    @property
    def summary_file(self) -> Path:
        return self.root / "summary.json"

    @property
    def answers(self) -> Path:
        """What an analyzer's server has answered."""
        return self.root / "answers.jsonl"

    def trajectories(self, update: int) -> Path:
        """Rollouts that update number `update` (the first is 1) trains on."""
        return self.root / "trajectories" / f"{update:06d}.jsonl"

    def scores(self, update: int) -> Path:
        """Per-token scores of the rollouts that update number `update` trained on."""
        return self.root / "scores" / f"{update:06d}.jsonl"

    def evaluation(self, updates: int) -> Path:
        """Evaluation of the policy after `updates` updates."""
        return self.root / "evals" / f"{updates:06d}.json"

    def compared(self, method: str) -> RunDir:
        """The folder of the same run under another method."""
        return RunDir(self.root / "compare" / method)

    def begin(self, stage: str, resume: bool) -> None:
        """Mark `stage` as begun. Raises ValueError if it was begun before, unless the run resumes."""
        if self._mark(stage) is not None and not resume:
            raise ValueError(
                f"{self.root} holds an unfinished {stage} stage: add --resume to go on with it, or choose "
                "another run.name"
            )
        write_json(self._marker(stage), {"finished": False})

    def finish(self, stage: str, result: Mapping[str, Any]) -> None:
        """Mark `stage` as finished, with what it found."""
        write_json(self._marker(stage), {"finished": True, "result": result})

    def reopen(self, stage: str) -> None:
        """Let a finished stage run again; it goes on from what it has on disk."""
        if self._mark(stage) is not None:
            write_json(self._marker(stage), {"finished": False})

    def result(self, stage: str) -> dict[str, Any] | None:
        """What a finished stage found; None while it is not finished."""
        mark = self._mark(stage)
        return mark["result"] if mark and mark["finished"] else None

    def _marker(self, stage: str) -> Path:
        return self.root / "stages" / f"{stage}.json"

    @parallel.on_main
    def _mark(self, stage: str) -> dict[str, Any] | None:
        return read_json(self._marker(stage))

    @parallel.on_main
    def drop_after(self, updates: int) -> None:
        """Remove what later updates than `updates` have written, and half-written files."""
        for folder in ("trajectories", "scores", "evals"):
            for unfinished in (self.root / folder).glob(".tmp-*"):
                unfinished.unlink()
            for file in (self.root / folder).glob("[0-9]*"):
                if int(file.stem) > updates:
                    file.unlink()


@parallel.on_main
def claim(folder: RunDir, config: Config, header: str = "") -> list[str]:
    """Write config.yaml into a new run's folder; for one that exists, the keys that a resumed run changes.

    `header` goes on top of config.yaml as comments. Raises ValueError if the folder holds a run with another
    configuration and `config.run.resume` is not set, naming the first key that differs.
    """
    changed: list[str] = []
    if folder.config_file.is_file():
        stored = load_config(folder.config_file)
        changed = list(differing_keys(stored, config))
        if changed and not config.run.resume:
            key = changed[0]
            raise ValueError(
                f"{folder.root} holds a run with {key} = {_value(stored, key)!r}, not "
                f"{_value(config, key)!r}: choose another run.name, or add --resume to go on with that"
            )
        if not changed:
            return []
    elif folder.root.is_dir() and any(folder.root.iterdir()):
        raise ValueError(f"{folder.root} holds files but no config.yaml: choose another run.name")
    folder.root.mkdir(parents=True, exist_ok=True)
    comments = "".join(f"# {line}\n" for line in header.splitlines())
    replace_file(folder.config_file, (comments + dump_config(config)).encode())
    return changed


def differing_keys(one: Config, other: Config) -> Iterator[str]:
    """Dotted keys whose values differ, except those that change no result."""
    left, right = _flat(one.model_dump(mode="json")), _flat(other.model_dump(mode="json"))
    for key in dict.fromkeys([*left, *right]):
        if key not in INCIDENTAL and left.get(key) != right.get(key):
            yield key


@parallel.on_main
def write_json(file: Path, values: Any) -> None:
    """Replace `file` by the JSON of `values`, atomically and durably."""
    file.parent.mkdir(parents=True, exist_ok=True)
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    replace_file(file, orjson.dumps(values, option=options))


def read_json(file: Path) -> dict[str, Any] | None:
    """The object in `file`; None when there is no such file."""
    if not file.is_file():
        return None
    try:
        found = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{file}: not JSON ({error}); delete it to repeat what wrote it") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file}: expected an object; delete it to repeat what wrote it")
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _value(config: Config, key: str) -> Any:
    return _flat(config.model_dump(mode="json")).get(key)
