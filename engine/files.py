"""Writing files so that a crash leaves either the old or the new content, never half of it."""

import os
from pathlib import Path


def replace_file(file: Path, content: bytes) -> None:
    """Replace `file` by `content` in one atomic step that has reached the disk when the call returns."""
    temporary = file.with_name(f".tmp-{file.name}")
    with temporary.open("wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and new names inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Make all files below `folder`, and their names, durable."""
    for root, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(root, name), "rb") as handle:
                os.fsync(handle.fileno())
        sync_folder(Path(root))
