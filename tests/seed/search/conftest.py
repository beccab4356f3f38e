"""A small library with questions, and the real passages and questions."""

import json

import pytest

pytest.importorskip("bm25s", reason="needs the extra `search`")

from library import PASSAGES, QUESTIONS

from sprout.seed.envs.search import SearchEnv
from sprout.seed.envs.search.index import build_index


def write_lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def write():
    """Writes records as JSONL; gives the path."""
    return write_lines


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A folder with corpus.jsonl, its index, and the same questions for train and test."""
    root = tmp_path_factory.mktemp("library")
    build_index(write_lines(root / "corpus.jsonl", PASSAGES), root / "index")
    for split in ("train", "test"):
        write_lines(root / split / "questions.jsonl", QUESTIONS)
    return root


@pytest.fixture
def make_env(library):
    """Builds an environment over the small library, every question in every split."""

    def make(**options):
        file = str(library / "train" / "questions.jsonl")
        options = {"questions": {"train": file, "select": file, "report": file}} | options
        return SearchEnv(**({"index": str(library / "index")} | options))

    return make


@pytest.fixture(scope="session")
def real(shared_data, tmp_path_factory):
    """(index folder, passages file, questions file) of the real data."""
    files = shared_data / "wiki-passages.jsonl.gz", shared_data / "search-questions.jsonl.gz"
    for file in files:
        if not file.is_file():
            pytest.skip(f"{file} is not there")
    folder = tmp_path_factory.mktemp("real") / "index"
    build_index(files[0], folder)
    return folder, *files
