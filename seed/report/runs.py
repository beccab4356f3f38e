"""The runs of a report: the folders given, what `sprout compare` put below them, and their names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from sprout.seed.config import load_config
from sprout.seed.run_dir import RunDir
from sprout.seed.schema import Config


@dataclass(frozen=True)
class ReportRun:
    """One run; `origin` is the run whose Stage 1 it started from, most often itself."""

    name: str
    folder: RunDir
    origin: RunDir
    config: Config

    def tokenizer(self) -> Tokenizer | None:
        """Of a checkpoint or the Stage-1 model; None while the run has neither. ValueError for a bad file."""
        for run in (self.folder, self.origin):
            steps = sorted(run.checkpoints.glob("step-*/model/tokenizer.json"), reverse=True)
            for file in (*steps, run.stage1_model / "tokenizer.json"):
                if file.is_file():
                    return _tokenizer(file)
        return None


def find_runs(folders: Sequence[Path]) -> list[ReportRun]:
    """The runs in `folders`, each followed by those under its compare/.

    A folder that is no run itself but holds some, as `sprout compare` makes it, stands for those. Raises
    FileNotFoundError for a folder without a run.
    """
    found = {run.root.resolve(): run for folder in folders for run in _runs_in(folder)}
    pairs = [(run, run) for run in found.values()]
    compared = [(RunDir(path), run) for _, run in pairs for path in _run_folders(run.root / "compare")]
    both = {folder.root.resolve(): (folder, origin) for folder, origin in [*pairs, *compared]}
    ordered = sorted(both.values(), key=lambda pair: [run.root for run, _ in pairs].index(pair[1].root))
    names = _names([folder.root for folder, _ in ordered])
    return [
        ReportRun(name, folder, origin, load_config(folder.config_file))
        for name, (folder, origin) in zip(names, ordered, strict=True)
    ]


def _tokenizer(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library has no class of its own for a bad file
        raise ValueError(f"{file}: not a tokenizer ({error})") from None


def _runs_in(folder: Path) -> Iterator[RunDir]:
    if (folder / "config.yaml").is_file():
        yield RunDir(folder)
        return
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} does not exist: give the folder of a run")
    runs = _run_folders(folder)
    if not runs:
        raise FileNotFoundError(f"{folder} holds no run: it has no config.yaml, and neither have its folders")
    yield from map(RunDir, runs)


def _run_folders(folder: Path) -> list[Path]:
    return sorted(file.parent for file in folder.glob("*/config.yaml"))


def _names(roots: Iterable[Path]) -> list[str]:
    """The paths from where they differ on."""
    paths = [path.resolve() for path in roots]
    common = Path(os.path.commonpath(path.parent for path in paths))
    return [path.relative_to(common).as_posix() for path in paths]
