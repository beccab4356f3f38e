"""GGUF checkpoints, made into Hugging Face model folders once and used as such from then on.

transformers dequantises the file; everything else (loading, tokenizers, export, resuming) then has one
format to know. The folder lies in the cache, under the hash of the file, so another file is never mistaken
for it: `$SPROUT_CACHE`, else `$XDG_CACHE_HOME/sprout`, else `~/.cache/sprout`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from sprout.engine.files import fresh_folder, swap_folder
from sprout.engine.model import ModelConfig
from sprout.engine.weights import copy_parameters, empty_decoder, save_model

EXTRA = "pip install 'sprout-rl[smollm]' (or only gguf and accelerate)"
FROM_THE_FILE = ("_name_or_path", "quantization_config", "transformers_version")  # of no use in a config.json


def folder_of_gguf(file: str | Path) -> Path:
    """The model folder of a GGUF file, fp32; dequantised at the first call, which takes a while.

    Raises FileNotFoundError for a missing file, ValueError for one that transformers cannot read or an
    architecture the decoder does not compute, ImportError without the packages that read GGUF.
    """
    file = Path(file)
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: give a GGUF file or a model folder")
    target = cache_folder() / "models" / f"{file.stem}-{_digest(file)}"
    if not (target / "config.json").is_file():
        _convert(file, target)
    return target


def cache_folder() -> Path:
    """Where derived files that can be made again are kept."""
    if own := os.environ.get("SPROUT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sprout"


def _digest(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()[:16]


def _convert(file: Path, target: Path) -> None:
    model, tokenizer = _read(file)
    config = {key: value for key, value in model.config.to_dict().items() if key not in FROM_THE_FILE}
    decoder = empty_decoder(ModelConfig.from_hf(config), "cpu", torch.float32)
    copy_parameters(decoder, model.state_dict(), file)
    temporary = fresh_folder(target)
    try:
        tokenizer.save_pretrained(temporary / "tokenizer")
        save_model(decoder, temporary / "model", temporary / "tokenizer")
        swap_folder(temporary / "model", target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _read(file: Path) -> tuple[Any, Any]:
    """transformers' model, in fp32, and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401

        # The library also reads what lies beside a file: configurations that name code or other models.
        with TemporaryDirectory() as alone:
            (Path(alone) / file.name).symlink_to(file.resolve())
            tokenizer = AutoTokenizer.from_pretrained(alone, **source)
            model = AutoModelForCausalLM.from_pretrained(alone, dtype=torch.float32, **source)
    except ImportError as error:
        raise ImportError(f"{file}: reading GGUF needs {error.name or 'gguf'}; {EXTRA}") from error
    except (ValueError, KeyError, OSError, RuntimeError) as error:
        raise ValueError(f"{file}: transformers cannot read it ({' '.join(str(error).split())})") from error
    return model, tokenizer
