"""Copies a run's model out as a Hugging Face folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from sprout.engine import checkpoint
from sprout.engine.files import fresh_folder, swap_folder
from sprout.engine.lora import merge_lora
from sprout.engine.tokenizer import load_tokenizer
from sprout.engine.weights import save_model
from sprout.seed.config import load_config
from sprout.seed.policy import load_decoder
from sprout.seed.run_dir import RunDir

MODEL_SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model")  # as `engine.weights` writes them


def export_model(run_folder: Path, target: Path, which: str = "latest", adapter: bool = False) -> Path:
    """Copy the model of a checkpoint (`latest`, `sft` or step-000040) to `target`; returns its source.

    A run with LoRA gives the merged model, or with `adapter` the adapter alone, as PEFT reads it. The model
    is loaded once before it is copied, so a damaged one is never handed on. Raises FileNotFoundError for a
    run or checkpoint that does not exist, FileExistsError for a target that does, and ValueError for
    `adapter` without one.
    """
    source = _source(RunDir(run_folder), which)
    if target.exists():
        raise FileExistsError(f"{target} exists already; choose another folder")
    config = load_config(RunDir(run_folder).config_file)
    decoder = load_decoder(source, config, torch.device("cpu"), getattr(torch, config.model.dtype))
    load_tokenizer(source)
    if adapter and decoder.lora is None:
        raise ValueError(f"{source} has no adapter: the run trained all weights; leave --adapter out")
    if decoder.lora is not None and not adapter:
        save_model(merge_lora(decoder), target, source)
        return source
    temporary = fresh_folder(target)
    try:
        for file in _model_files(source):
            shutil.copy2(file, temporary)
        swap_folder(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return source


def _model_files(folder: Path) -> list[Path]:
    """What a model consists of. Raises ValueError for a link: nobody meant to share what it leads to."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix in MODEL_SUFFIXES]
    for file in files:
        if file.is_symlink():
            raise ValueError(f"{file} is a link to {file.readlink()}: put the file itself there")
    return files


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
