"""Where passages and questions are, and what to say when they are not."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sprout.seed.envs.search.index import open_index
from sprout.seed.envs.search.questions import Sources, question_files
from sprout.seed.envs.search.retriever import Retriever
from sprout.seed.envs.search.server import RetrievalServer

VARIABLE = "SEARCH_DATA"
DOWNLOAD = (
    "from Hugging Face get passages (PeterJinGo/wiki-18-corpus, or any JSONL with id, title, text) and "
    "question files (RUC-NLPIR/FlashRAG_datasets: nq, triviaqa, popqa, hotpotqa, 2wikimultihopqa, musique, "
    "bamboogle)"
)
LAYOUT = (
    f"with FOLDER/train/*.jsonl, FOLDER/test/*.jsonl and the index made by "
    f"`sprout search-index CORPUS FOLDER/index`, set {VARIABLE}=FOLDER or env.options.data=FOLDER"
)
Given = str | Sequence[str] | Mapping[str, str | Sequence[str]]


def find_questions(given: Given | None, data: str | None) -> Sources:
    """The question files that are given, else train and test of the data folder. Raises ValueError."""
    if given is not None:
        return question_files(given)
    root = _root(data, "questions", "env.options.questions")
    present = {split: str(root / split) for split in ("train", "test") if (root / split).is_dir()}
    if not present:
        raise ValueError(f"{root} has no train or test folder of question files: {DOWNLOAD}; {LAYOUT}")
    return question_files(present)


def find_retriever(
    index: str | None,
    server: str | None,
    corpus: str | None,
    data: str | None,
    timeout_s: float,
    retries: int,
) -> Retriever:
    """The server or the index that is given, else the index of the data folder. Raises ValueError."""
    if index is not None and server is not None:
        raise ValueError("env.options: give index or server, not both")
    if server is not None:
        return RetrievalServer(server, timeout_s=timeout_s, retries=retries)
    folder = Path(index).expanduser() if index else _root(data, "passages", "env.options.index") / "index"
    return open_index(folder, Path(corpus).expanduser() if corpus else None)


def _root(data: str | None, what: str, option: str) -> Path:
    root = data or os.environ.get(VARIABLE)
    if not root:
        raise ValueError(
            f"search needs its {what}, and neither {option} nor {VARIABLE} is set: {DOWNLOAD}; {LAYOUT}"
        )
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such data folder: {DOWNLOAD}; {LAYOUT}")
    return folder
