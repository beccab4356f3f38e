"""Where the game files are, and which one an episode plays. A split is listed when it is first used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from random import Random

from sprout.seed.envs.alfworld.game import GameFileError, read_game_file

VARIABLE = "ALFWORLD_DATA"
FOLDER = "json_2.1.1"
GAME_FILE = "game.tw-pddl"
SPLITS = ("train", "valid_seen", "valid_unseen")
UNSUPPORTED = ("movable", "Sliced")  # families that the released games leave out
DOWNLOAD = (
    "`pip install alfworld` and `alfworld-download --data-dir FOLDER` fetch the games "
    "(json_2.1.2_tw-pddl.zip of github.com/alfworld/alfworld, release 0.4.0); "
    f"then set {VARIABLE}=FOLDER or env.options.data=FOLDER"
)


def data_folder(given: str | None = None) -> Path:
    """The folder that holds the splits: of `given`, else of `$ALFWORLD_DATA`. Raises ValueError."""
    root = given or os.environ.get(VARIABLE)
    if not root:
        raise ValueError(f"alfworld needs its games and {VARIABLE} is not set: {DOWNLOAD}")
    for folder in (Path(root).expanduser() / FOLDER, Path(root).expanduser()):
        if any((folder / split).is_dir() for split in SPLITS):
            return folder
    raise ValueError(f"{root} holds no {FOLDER}/train, valid_seen or valid_unseen of alfworld: {DOWNLOAD}")


@lru_cache(maxsize=8)
def list_games(folder: Path, split: str) -> tuple[str, ...]:
    """Game files of a split, relative to `folder`, in a fixed shuffled order: any prefix is a fair sample.

    Raises ValueError for a split that is not there or has no games.
    """
    if not (folder / split).is_dir():
        found = [name for name in SPLITS if (folder / name).is_dir()]
        raise ValueError(f"{folder} has no split {split!r}, only {', '.join(found)}: {DOWNLOAD}")
    games = sorted(os.path.relpath(path, folder) for path in _scan(folder / split))
    if not games:
        raise ValueError(f"{folder / split} has no {GAME_FILE} in any of its folders: {DOWNLOAD}")
    Random(split).shuffle(games)
    return tuple(games)


def _scan(split: Path) -> Iterator[str]:
    for task in os.scandir(split):
        if task.is_dir() and not any(word in task.name for word in UNSUPPORTED):
            for trial in os.scandir(task.path):
                path = os.path.join(trial.path, GAME_FILE)
                if os.path.isfile(path):
                    yield path


def choose_game(folder: Path, split: str, seed: int) -> Path:
    """The game of (split, seed); one that is marked unsolvable gives way to the next. Raises ValueError."""
    games = list_games(folder, split)
    for step in range(len(games)):
        path = folder / games[(seed + step) % len(games)]
        if _is_solvable(path):
            return path
    raise ValueError(f"no game of {folder / split} is marked solvable: {DOWNLOAD}")


@lru_cache(maxsize=8192)
def _is_solvable(path: Path) -> bool:
    return read_game_file(path).solvable


def family_of(path: Path) -> str:
    """The family of a game, from the name of its task's folder. Raises GameFileError."""
    family, dash, _ = path.parent.parent.name.partition("-")
    if not dash:
        raise GameFileError(
            f"{path}: its folder is not FAMILY-OBJECT-.../TRIAL; keep the games as downloaded"
        )
    return family
