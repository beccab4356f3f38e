"""Passages: a corpus file to be read once, and a store that is memory-mapped and read by number."""

from __future__ import annotations

import gzip
import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson

from sprout.engine.files import DAMAGED_GZIP

TEXTS, OFFSETS = "passages.jsonl", "offsets.npy"


@dataclass(frozen=True)
class Passage:
    """A piece of an article. `score` is the retriever's; higher is better."""

    id: str
    title: str
    text: str
    score: float = 0.0

    @property
    def contents(self) -> str:
        """Title and text, the title on the first line: what is searched."""
        return f"{self.title}\n{self.text}"

    @staticmethod
    def of(record: Any, score: float = 0.0) -> Passage:
        """The passage of {id, title, text} or {id, contents}. Raises ValueError for anything else."""
        if not isinstance(record, dict) or not isinstance(record.get("id"), str | int):
            raise ValueError("a passage is an object with an id")
        title, text, contents = (record.get(name) for name in ("title", "text", "contents"))
        if text is None and isinstance(contents, str):
            title, _, text = contents.partition("\n")
        if not isinstance(text, str) or not isinstance(title, str):
            raise ValueError("a passage needs title and text, or contents with the title on the first line")
        quoted = len(title) > 1 and title[0] == title[-1] == '"'
        return Passage(str(record["id"]), title[1:-1] if quoted else title, text, score)


@dataclass(frozen=True)
class Corpus:
    """A JSONL file of passages, gzipped if its name ends in .gz."""

    path: Path

    def read(self, advance: Callable[[int], None] = lambda percent: None) -> Iterator[Passage]:
        """All passages in order; `advance` is told how many more percent of the file are read.

        Raises ValueError, naming file and line, for a line that is no passage.
        """
        size, reported = max(self.path.stat().st_size, 1), 0
        with open(self.path, "rb") as raw:
            for number, line in enumerate(_lines(self.path, raw), start=1):
                if line.strip():
                    yield _passage(line, f"{self.path}:{number}")
                percent = 100 * raw.tell() // size
                if percent > reported:
                    advance(percent - reported)
                    reported = percent

    def fingerprint(self) -> str:
        """SHA-256 of the uncompressed content."""
        digest = hashlib.sha256()
        with open(self.path, "rb") as raw:
            for line in _lines(self.path, raw):
                digest.update(line)
        return digest.hexdigest()

    def stamp(self) -> dict[str, Any]:
        """Where the file is, its size and its time: as long as they stay, it is taken for unchanged."""
        status = self.path.stat()
        return {"path": str(self.path.resolve()), "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _lines(path: Path, raw: IO[bytes]) -> Iterator[bytes]:
    try:
        yield from gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
    except DAMAGED_GZIP as error:
        raise ValueError(f"{path}: its gzip data is damaged ({error}); download it again") from None


def _passage(line: bytes, place: str) -> Passage:
    try:
        return Passage.of(orjson.loads(line))
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{place}: not a JSON line ({error})") from None
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def write_store(folder: Path, passages: Iterator[Passage]) -> Iterator[Passage]:
    """Passes passages on and stores them on the way; the store is whole when the last one is through."""
    offsets = [0]
    with open(folder / TEXTS, "wb") as file:
        for passage in passages:
            line = orjson.dumps({"id": passage.id, "title": passage.title, "text": passage.text})
            offsets.append(offsets[-1] + file.write(line + b"\n"))
            yield passage
    np.save(folder / OFFSETS, np.array(offsets, np.int64))


class PassageStore:
    """The passages of a folder by number, memory-mapped: only what is read takes memory."""

    def __init__(self, folder: Path) -> None:
        self._offsets = np.asarray(np.load(folder / OFFSETS, mmap_mode="r"))
        with open(folder / TEXTS, "rb") as file:
            if os.fstat(file.fileno()).st_size != self._offsets[-1]:
                raise ValueError(f"{folder / TEXTS} is not as long as it was when it was written")
            self._texts = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def get(self, number: int, score: float = 0.0) -> Passage:
        """Passage `number`, with a retriever's score."""
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        return Passage(**orjson.loads(self._texts[start:end]), score=score)
