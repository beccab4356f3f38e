"""Checkpoints from which a run continues exactly.

    checkpoints/step-000040/model/      Hugging Face layout, loads in transformers
                            trainer/    moments and master weights (torch DCP in safetensors files)
                            state.json  what the caller needs to continue
                            COMPLETE    sizes and SHA-256 of all of these

A checkpoint is written to a temporary folder, synced, renamed, and marked COMPLETE last. Nothing is pickled.
"""

import errno
import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from sprout.engine import parallel
from sprout.engine.files import fresh_folder, is_disk_full, replace_file, swap_folder
from sprout.engine.model import Decoder
from sprout.engine.optimizer import Optimizer
from sprout.engine.weights import cut_shards, read_weights, save_model, weight_bytes

SCHEMA_VERSION = 1
MARKER = "COMPLETE"
STATE_FILE = "state.json"
TRAINER_SHARD_BYTES = 2 * 10**9  # the writer serialises a shard in memory


def step_folder(directory: str | Path, step: int) -> Path:
    """Folder of the checkpoint taken after `step` updates."""
    return Path(directory) / f"step-{step:06d}"


def save(
    folder: str | Path,
    decoder: Decoder,
    optimizer: Optimizer,
    state: Mapping[str, Any],
    *,
    tokenizer_folder: str | Path | None = None,
    keep_last: int | None = None,
) -> None:
    """Write the checkpoint `folder` (see `step_folder`); every rank must call it.

    state: anything JSON holds, returned by `load`. keep_last: how many checkpoints up to this one survive;
    older ones go only after this one is complete. When the disk is full, an OSError names the folder and the
    space needed, the temporary folder is removed and older checkpoints are as before.
    """
    folder = Path(folder)
    if keep_last is not None and keep_last < 1:
        raise ValueError(f"keep_last={keep_last} must be at least 1")
    encoded = _encode_state(optimizer, state)
    temporary = folder.with_name(f".tmp-{folder.name}")
    try:
        if parallel.is_main():
            fresh_folder(folder)
        parallel.barrier()
        save_model(decoder, temporary / "model", tokenizer_folder)
        if parallel.is_main():
            (temporary / STATE_FILE).write_bytes(encoded)
        _write_trainer(optimizer, temporary / "trainer")
        parallel.barrier()
        if parallel.is_main():
            _complete(temporary, folder)
            _prune(folder, keep_last)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if is_disk_full(error):
            raise _disk_full(folder, weight_bytes(decoder) + _trainer_bytes(optimizer)) from error
        raise
    parallel.barrier()


def load(folder: str | Path, decoder: Decoder, optimizer: Optimizer) -> dict[str, Any]:
    """Restore weights and optimizer in place from a complete checkpoint, and return its `state`.

    Raises FileNotFoundError or ValueError, naming the file, when the checkpoint is incomplete, when a file in
    it is missing, truncated or altered, or when it belongs to another model or optimizer.
    """
    folder = Path(folder)
    verify(folder)
    content = json.loads((folder / STATE_FILE).read_bytes())
    if content.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"{folder / STATE_FILE} has schema_version {content.get('schema_version')}, "
            f"this version of sprout reads {SCHEMA_VERSION}"
        )
    _check_trainer(optimizer, folder / "trainer")
    read_weights(decoder, folder / "model")
    _read_trainer(optimizer, folder / "trainer")
    optimizer.restored(content["optimizer_updates"])
    return content["state"]


def latest(directory: str | Path) -> Path | None:
    """The newest complete checkpoint of a run, None without one; half-written ones are named in a warning."""
    folders = _step_folders(Path(directory))
    half_written = [folder.name for folder in folders if not _is_complete(folder)]
    if half_written:
        warnings.warn(f"{directory}: skipped half-written {', '.join(half_written)}", stacklevel=2)
    complete = [folder for folder in folders if _is_complete(folder)]
    return complete[-1] if complete else None


def resolve(directory: str | Path, resume: bool | str) -> Path | None:
    """The checkpoint that `resume` asks for: False none, True the latest, "step-000040" that one.

    Raises FileNotFoundError, listing what there is, when a named checkpoint does not exist or is incomplete.
    True without any complete checkpoint gives None: the run starts over.
    """
    directory = Path(directory)
    if isinstance(resume, bool):
        return latest(directory) if resume else None
    complete = [folder.name for folder in _step_folders(directory) if _is_complete(folder)]
    if resume not in complete:
        there = ", ".join(complete) or "no complete checkpoint"
        raise FileNotFoundError(f"resume={resume}: not a complete checkpoint; {directory} holds {there}")
    return directory / resume


def supersede_later(folder: str | Path) -> list[Path]:
    """Rename the checkpoints newer than `folder` to superseded-step-*, and return their new paths.

    For a run that goes back to `folder`: what it left behind must neither be resumed from nor count for
    `keep_last`.
    """
    renamed: list[Path] = []
    if not parallel.is_main():
        return renamed
    for later in _step_folders(Path(folder).parent):
        if _step(later) > _step(Path(folder)):
            target = later.with_name(f"superseded-{later.name}")
            shutil.rmtree(target, ignore_errors=True)
            renamed.append(later.rename(target))
    return renamed


def verify(folder: str | Path) -> None:
    """Check every file of a checkpoint against the sizes and hashes in COMPLETE; errors as in `load`."""
    folder = Path(folder)
    if not _is_complete(folder):
        raise FileNotFoundError(f"{folder} is not a complete checkpoint: it has no {MARKER}{_others(folder)}")
    try:
        manifest = json.loads((folder / MARKER).read_bytes())
        expected = {
            _inside(folder, name): (entry["bytes"], entry["sha256"]) for name, entry in manifest.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / MARKER} is damaged{_others(folder)}") from error
    for file, (size, _) in expected.items():
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing{_others(folder)}")
        if file.stat().st_size != size:
            raise ValueError(f"{file} has {file.stat().st_size} bytes instead of {size}{_others(folder)}")
    for file, digest in _digests(list(expected)).items():
        if digest != expected[file][1]:
            raise ValueError(f"{file} is damaged: its SHA-256 is not the one written{_others(folder)}")


def _inside(folder: Path, name: str) -> Path:
    """A file that COMPLETE names; a checkpoint makes nobody look outside its folder."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"{name!r} is no file of this folder")
    return folder / name


def _encode_state(optimizer: Optimizer, state: Mapping[str, Any]) -> bytes:
    for name, value in state.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"checkpoint state {name!r} cannot be stored as JSON: {error}") from error
    content = {
        "schema_version": SCHEMA_VERSION,
        "optimizer_updates": optimizer.updates,
        "state": dict(state),
    }
    return json.dumps(content, indent=1).encode()


def _complete(temporary: Path, folder: Path) -> None:
    files = sorted(path for path in temporary.rglob("*") if path.is_file())
    manifest = {
        str(file.relative_to(temporary)): {"bytes": file.stat().st_size, "sha256": digest}
        for file, digest in _digests(files).items()
    }
    previous = swap_folder(temporary, folder)
    replace_file(folder / MARKER, json.dumps(manifest, indent=1).encode())
    shutil.rmtree(previous, ignore_errors=True)


def _prune(newest: Path, keep_last: int | None) -> None:
    """Remove older checkpoints beyond `keep_last`, and what earlier crashes left unfinished."""
    for leftover in (*newest.parent.glob(".tmp-step-*"), *newest.parent.glob(".old-step-*")):
        shutil.rmtree(leftover, ignore_errors=True)
    if keep_last is None:
        return
    older = [f for f in _step_folders(newest.parent) if _is_complete(f) and _step(f) < _step(newest)]
    for folder in older[: max(0, len(older) - keep_last + 1)]:
        shutil.rmtree(folder.rename(folder.with_name(f".old-{folder.name}")))


def _write_trainer(optimizer: Optimizer, folder: Path) -> None:
    tensors = optimizer.tensors()
    shards = cut_shards(tensors, TRAINER_SHARD_BYTES)
    file_of = {name: number for number, names in enumerate(shards, start=1) for name in names}
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=file_of, save_distributed=True)
    with _no_process_group_is_fine():
        dcp.save(tensors, storage_writer=writer, no_dist=parallel.world_size() == 1)


def _check_trainer(optimizer: Optimizer, folder: Path) -> None:
    stored = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    shapes = {name: entry.size for name, entry in stored.items() if isinstance(entry, TensorStorageMetadata)}
    try:
        optimizer.check_shapes(shapes)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def _read_trainer(optimizer: Optimizer, folder: Path) -> None:
    with _no_process_group_is_fine():
        dcp.load(
            optimizer.tensors(),
            storage_reader=HuggingFaceStorageReader(str(folder)),
            no_dist=parallel.world_size() == 1,
        )


def _no_process_group_is_fine() -> warnings.catch_warnings:
    """Silences the remark torch makes whenever a checkpoint has a single process."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


def _trainer_bytes(optimizer: Optimizer) -> int:
    return sum(tensor.nbytes for tensor in optimizer.tensors().values())


def _disk_full(folder: Path, needed: int) -> OSError:
    free = shutil.disk_usage(folder.parent).free
    message = (
        f"no space to write a checkpoint: about {needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free; "
        "older checkpoints are intact; free space, or lower keep_last, and resume"
    )
    return OSError(errno.ENOSPC, message, str(folder))


def _digests(files: list[Path]) -> dict[Path, str]:
    with ThreadPoolExecutor(max_workers=8) as pool:
        return dict(zip(files, pool.map(_sha256, files), strict=True))


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _step_folders(directory: Path) -> list[Path]:
    """All checkpoint folders, complete or not, by step."""
    if not directory.is_dir():
        return []
    folders = (f for f in directory.iterdir() if re.fullmatch(r"step-\d+", f.name) and f.is_dir())
    return sorted(folders, key=_step)


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _is_complete(folder: Path) -> bool:
    return (folder / MARKER).is_file()


def _others(folder: Path) -> str:
    """The end of an error message: which complete checkpoints are left to resume from."""
    others = [f.name for f in _step_folders(folder.parent) if _is_complete(f) and f != folder]
    return f"; resume from {' or '.join(others)}" if others else "; there is no other checkpoint"
