"""Formats of stored trajectories. A reader is a module (or object) with two functions:

    recognises(record: Mapping) -> bool
    read(record: Mapping, line: Line) -> Trajectory

Built in are `sprout`, `messages` and `search-r1`; packages add theirs under the entry point group
`sprout.readers`. Lines are read one at a time, whatever the size of the file.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import orjson

from sprout.engine.chat import ChatFormat
from sprout.engine.files import DAMAGED_GZIP
from sprout.seed.schema import RolloutSection
from sprout.seed.trajectory import Trajectory

GROUP = "sprout.readers"
BUILT_IN = {
    "sprout": "sprout.seed.rescore.readers.sprout",
    "search-r1": "sprout.seed.rescore.readers.search_r1",
    "messages": "sprout.seed.rescore.readers.messages",
}


@dataclass(frozen=True)
class Line:
    """Where a record stands, and what a reader needs to make ids of its texts.

    system   system message of a record that brings none
    """

    place: str
    number: int
    content: bytes
    chat: ChatFormat
    layout: RolloutSection
    system: str = ""


class Reader(Protocol):
    """One format."""

    def recognises(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is of this format."""
        ...

    def read(self, record: Mapping[str, Any], line: Line) -> Trajectory:
        """The trajectory of a record. Raises ValueError for one that is not whole."""
        ...


def readers() -> dict[str, Reader]:
    """Every known reader by name."""
    found: dict[str, Any] = {name: import_module(module) for name, module in BUILT_IN.items()}
    return found | {point.name: point.load() for point in entry_points(group=GROUP)}


def parse(line: Line, format_name: str = "auto") -> Trajectory:
    """The trajectory of a line, by the named reader or the first that recognises it.

    Raises ValueError that begins with the line's place.
    """
    try:
        record = orjson.loads(line.content)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{line.place}: not a JSON line ({error})") from None
    if not isinstance(record, dict):
        raise ValueError(f"{line.place}: expected a JSON object, found {type(record).__name__}")
    reader = _reader(record, line.place, format_name)
    try:
        return reader.read(record, line)
    except ValueError as error:
        text = " ".join(str(error).split())
        raise ValueError(text if text.startswith(line.place) else f"{line.place}: {text}") from None
    except (TypeError, AttributeError, LookupError, RecursionError) as error:
        raise ValueError(f"{line.place}: not as expected ({type(error).__name__}: {error})") from None


def _reader(record: Mapping[str, Any], place: str, name: str) -> Reader:
    known = readers()
    if name != "auto":
        if name not in known:
            raise ValueError(f"--format {name}: unknown; known: {', '.join(sorted(known))}")
        return known[name]
    for reader in known.values():
        if reader.recognises(record):
            return reader
    raise ValueError(
        f"{place}: no reader recognises the keys {', '.join(sorted(record)[:8])}; known formats: "
        f"{', '.join(sorted(known))}"
    )


def input_files(path: Path) -> list[Path]:
    """The file itself, or the JSONL files (also gzipped) of a folder in order of their names."""
    if path.is_dir():
        found = sorted(f for f in path.iterdir() if f.name.endswith((".jsonl", ".jsonl.gz")))
        if not found:
            raise FileNotFoundError(f"{path} holds no .jsonl or .jsonl.gz file")
        return found
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: give a file of trajectories or a folder of them")
    return [path]


def raw_lines(path: Path, max_bytes: int) -> Iterator[tuple[str, int, bytes]]:
    """(place, number from 1, content) of every line that is not blank.

    Raises ValueError for a line longer than `max_bytes` and for a damaged gzip file.
    """
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as handle:
        number = 0
        while True:
            number += 1
            try:
                content = handle.readline(max_bytes + 1)
            except DAMAGED_GZIP as error:
                raise ValueError(f"{path}: damaged gzip file after line {number - 1} ({error})") from None
            if not content:
                return
            if len(content) > max_bytes:
                raise ValueError(
                    f"{path}:{number}: the line is longer than {max_bytes // 2**20} MiB; split the "
                    "trajectory, or raise --max-line-mib"
                )
            if content.strip():
                yield f"{path}:{number}", number, content
