"""Question files, and which question an episode asks.

A file is JSONL, one {id, question, golden_answers} a line, gzipped if its name ends in .gz. `dataset` names
the set a question belongs to; without it the set has the file's name, or its folder's if the file is called
train, dev or test.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from random import Random

import orjson

from sprout.engine.files import DAMAGED_GZIP
from sprout.seed.envs.search.exact_match import normalized

SPLITS = ("train", "select", "report")
SUFFIXES = (".jsonl", ".jsonl.gz")
_UNNAMED = ("train", "dev", "test")
Sources = Mapping[str, tuple[Path, ...]]


@dataclass(frozen=True)
class Question:
    """A question with every answer that counts as right."""

    dataset: str
    id: str
    text: str
    golden_answers: tuple[str, ...]


def question_files(given: str | Sequence[str] | Mapping[str, str | Sequence[str]]) -> Sources:
    """Files by split; key `all` stands for files to be divided, `test` for files of select and report.

    A folder stands for the question files in it. Raises ValueError for another key and for what is not there.
    """
    named = given if isinstance(given, Mapping) else {"all": given}
    unknown = [name for name in named if name not in (*SPLITS, "test", "all")]
    if unknown:
        raise ValueError(f"env.options.questions: no split {unknown[0]!r}; use train, select, report or test")
    listed = {name: [paths] if isinstance(paths, str) else paths for name, paths in named.items()}
    return {name: tuple(_files(paths)) for name, paths in listed.items()}


def choose_question(sources: Sources, split: str, seed: int) -> Question:
    """The question of (split, seed): the seed-th of a fixed order, modulo their number. Raises ValueError."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; use one of {', '.join(SPLITS)}")
    found = list_questions(*_of_split(sources, split))
    return found[seed % len(found)]


@lru_cache(maxsize=16)
def list_questions(
    files: tuple[Path, ...], stamps: tuple[int, ...], split: str, divide: str
) -> list[Question]:
    """The questions of a split. Train is shuffled; a panel takes turns among the sets, so that any beginning
    of it holds all of them in equal parts."""
    questions = [question for path in files for question in read_questions(path)]
    mine = [question for question in questions if _SHARES[divide](_bucket(question)) == split]
    if not mine:
        raise ValueError(f"no question of {', '.join(map(str, files))} falls to {split}; give more questions")
    Random(split).shuffle(mine)
    return mine if split == "train" else list(_in_turns(mine))


def read_questions(path: Path) -> Iterator[Question]:
    """All questions of a file. Raises ValueError, naming file and line, for a line that is no question."""
    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
    dataset = path.parent.name if name in _UNNAMED else name
    with open(path, "rb") as raw:
        try:
            lines = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _question(line, dataset, f"{path}:{number}")
        except DAMAGED_GZIP as error:
            raise ValueError(f"{path}: its gzip data is damaged ({error}); download it again") from None


def _question(line: bytes, dataset: str, place: str) -> Question:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{place}: not a JSON line ({error})") from None
    if not isinstance(record, dict) or not str(record.get("question") or "").strip():
        raise ValueError(f"{place}: a question is an object with id, question and golden_answers")
    answers = record.get("golden_answers")
    answers = [answers] if isinstance(answers, str) else answers
    if not isinstance(answers, list) or not answers:
        raise ValueError(f"{place}: the question has no golden_answers (a list of texts): nothing is right")
    if not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise ValueError(f"{place}: golden_answers holds something that is no text, or an empty one")
    named = record.get("dataset", dataset)
    return Question(str(named), str(record.get("id", place)), str(record["question"]).strip(), tuple(answers))


def _files(paths: Iterable[str]) -> Iterator[Path]:
    for given in paths:
        path = Path(given).expanduser()
        found = sorted(p for p in path.glob("*") if p.name.endswith(SUFFIXES)) if path.is_dir() else [path]
        if not found or not found[0].is_file():
            raise ValueError(f"{path}: no question file; it is JSONL with id, question, golden_answers")
        yield from found


def _of_split(sources: Sources, split: str) -> tuple[tuple[Path, ...], tuple[int, ...], str, str]:
    """Files of a split, their times (a file that changes is read again), and how they are divided."""
    panels = ["test"] if split != "train" else []
    for key in (split, *panels, "all"):
        if key in sources:
            divide = key if key in _SHARES else split
            return sources[key], tuple(path.stat().st_mtime_ns for path in sources[key]), split, divide
    raise ValueError(
        f"there are no questions for {split}: give env.options.questions={{{split}: FILE}}"
        + (" or {test: FILE}" if panels else "")
    )


def _bucket(question: Question) -> int:
    """0 to 9, from the question's words: the same question in two sets falls to the same split."""
    return hashlib.blake2b(normalized(question.text).encode(), digest_size=8).digest()[0] % 10


_SHARES: Mapping[str, Callable[[int], str]] = {
    "all": lambda bucket: "train" if bucket < 7 else "select" if bucket == 7 else "report",
    "test": lambda bucket: "select" if bucket < 3 else "report",
    **{split: lambda bucket, split=split: split for split in SPLITS},  # type: ignore[misc]
}


def _in_turns(questions: Iterable[Question]) -> Iterator[Question]:
    sets: dict[str, list[Question]] = {}
    for question in questions:
        sets.setdefault(question.dataset, []).append(question)
    for row in zip_longest(*(sets[name] for name in sorted(sets))):
        yield from (question for question in row if question is not None)
