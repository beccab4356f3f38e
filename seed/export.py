"""Copies a run's model out as a Hugging Face folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from sprout.engine import checkpoint
from sprout.engine.files import fresh_folder, swap_folder
from sprout.engine.tokenizer import load_tokenizer
from sprout.engine.weights import load_model
from sprout.seed.run_dir import RunDir


def export_model(run_folder: Path, target: Path, which: str = "latest") -> Path:
    """Copy the model of a checkpoint (`latest`, `sft` or step-000040) to `target`; returns its source.

    The model is loaded once before it is copied, so a damaged one is never handed on. Raises
    FileNotFoundError for a run or checkpoint that does not exist and FileExistsError for a target that does.
    """
    source = _source(RunDir(run_folder), which)
    if target.exists():
        raise FileExistsError(f"{target} exists already; choose another folder")
    load_model(source)
    load_tokenizer(source)
    temporary = fresh_folder(target)
    shutil.copytree(source, temporary, dirs_exist_ok=True)
    swap_folder(temporary, target)
    return source


def _source(run: RunDir, which: str) -> Path:
    if not run.root.is_dir():
        raise FileNotFoundError(f"{run.root} does not exist: give the folder of a run")
    if which == "sft":
        if not run.stage1_model.is_dir():
            raise FileNotFoundError(f"{run.stage1_model} does not exist: run the sft stage first")
        return run.stage1_model
    chosen = checkpoint.resolve(run.checkpoints, True if which == "latest" else which)
    if chosen is None:
        raise FileNotFoundError(f"{run.checkpoints} has no complete checkpoint; try --checkpoint=sft")
    return chosen / "model"
