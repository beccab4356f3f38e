"""Writing files and folders so that a crash leaves the old or the new content, never half of it."""

import errno
import gzip
import os
import re
import shutil
import zlib
from pathlib import Path

DAMAGED_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)  # what reading one raises
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def replace_file(file: Path, content: bytes) -> None:
    """Replace `file` by `content` in one atomic step that has reached the disk when the call returns."""
    temporary = file.with_name(f".tmp-{file.name}")
    temporary.unlink(missing_ok=True)  # of a crash, or a link that somebody has put there
    try:
        with temporary.open("xb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def fresh_folder(folder: Path) -> Path:
    """An empty temporary folder beside `folder`, to be filled and then given to `replace_folder`."""
    temporary = folder.with_name(f".tmp-{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    return temporary


def swap_folder(temporary: Path, folder: Path) -> Path:
    """Put the filled `temporary` in the place of `folder`, durably.

    Returns where the previous `folder`, if there was one, now waits for the caller to remove it.
    """
    sync_tree(temporary)
    previous = folder.with_name(f".old-{folder.name}")
    shutil.rmtree(previous, ignore_errors=True)
    if folder.exists():
        folder.rename(previous)
    temporary.rename(folder)
    sync_folder(folder.parent)
    return previous


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


def is_disk_full(error: BaseException) -> bool:
    """Whether `error` says that no more can be written: disk, quota or file-size limit.

    Knows OSError, safetensors' error (which carries the code in its text only) and the collected failures of
    `torch.distributed.checkpoint`.
    """
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict):
        return any(is_disk_full(failure) for failure, _ in failures.values())
    if isinstance(error, OSError):
        return error.errno in NO_SPACE
    code = re.search(r"\(os error (\d+)\)", str(error))
    return code is not None and int(code[1]) in NO_SPACE
