"""A BM25 index of a corpus (extra `search`): built once into a folder, then memory-mapped.

    passages.jsonl, offsets.npy    the passages themselves
    *.index.npy, *.index.json      what bm25s writes: scores of every (word, passage), vocabulary, parameters
    manifest.json                  which corpus it was built from, and the size of every other file

bm25s builds in memory, about 50 bytes for each word of the corpus.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from sprout.engine.files import fresh_folder, swap_folder
from sprout.engine.terminal import PlainConsole
from sprout.seed.envs.search.passages import Corpus, Passage, PassageStore, write_store

MANIFEST, FORMAT = "manifest.json", 2
STOP_WORDS = "english"
LARGE = 500_000  # passages from which on compiling bm25s' own loops (10 s) pays


def build_index(
    corpus_file: Path, folder: Path, console: Console | None = None, replace: bool = False
) -> dict[str, Any]:
    """Index a corpus; the folder appears when it is complete. Returns what its manifest says.

    Raises FileNotFoundError without a corpus, ValueError for a line that is no passage and for a folder that
    holds something else, ImportError without bm25s.
    """
    from sprout.engine.progress import progress  # with torch, which those who only retrieve do without

    bm25s = _bm25s()
    corpus, console = Corpus(corpus_file), console or PlainConsole(stderr=True)
    if not corpus_file.is_file():
        raise FileNotFoundError(f"{corpus_file}: no such corpus; it is JSONL with id, title, text; .gz too")
    _check_target(folder, corpus, replace)
    temporary = fresh_folder(folder)
    stamp, fingerprint = corpus.stamp(), corpus.fingerprint()
    words = _tokenizer()
    with progress("reading passages, %", 100, console=console) as advance:
        texts = (passage.contents for passage in write_store(temporary, corpus.read(advance)))
        ids = list(words.streaming_tokenize(texts, update_vocab=True))
    if not ids:
        raise ValueError(f"{corpus_file} holds no passage")
    model = bm25s.BM25(method="lucene")
    quiet = not console.is_terminal
    console.print(f"scoring the words of {len(ids):,} passages")
    model.index(bm25s.tokenization.Tokenized(ids, words.get_vocab_dict()), show_progress=not quiet)
    model.save(temporary, show_progress=not quiet)
    sizes = {file.name: file.stat().st_size for file in sorted(temporary.iterdir())}
    manifest = {"format": FORMAT, "passages": len(ids), "fingerprint": fingerprint, "corpus": stamp}
    manifest["sizes"] = sizes
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2))
    shutil.rmtree(swap_folder(temporary, folder), ignore_errors=True)
    return manifest


def open_index(folder: Path, corpus: Path | None = None) -> Index:
    """The index of a folder, shared by everyone in this process who asks for it.

    With `corpus` the index must have been built from that very file. Raises ValueError, in one line, for a
    folder without an index, a damaged one, and one that was built from another corpus.
    """
    if not (folder / MANIFEST).is_file():
        raise ValueError(
            f"{folder} holds no search index: build it with `sprout search-index CORPUS {folder}`"
        )
    stamp = (folder / MANIFEST).stat().st_mtime_ns
    index = _open(folder.resolve(), stamp)
    if corpus is not None:
        _check_corpus(index, corpus)
    return index


class Index:
    """BM25 over the passages of a folder."""

    def __init__(self, folder: Path) -> None:
        bm25s = _bm25s()
        self.folder = folder
        self.manifest = _read_manifest(folder)
        _check_files(folder, self.manifest["sizes"])
        try:
            large = self.manifest["passages"] >= LARGE
            backend = "numba" if large else "numpy"
            self._model = bm25s.BM25.load(folder, mmap=True, load_corpus=False, backend=backend)
            self._store = PassageStore(folder)
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"{folder} is a damaged search index ({error}): build it again") from None
        # plain views: slicing a memmap takes longer than scoring a word
        for name in ("data", "indices", "indptr"):
            self._model.scores[name] = np.asarray(self._model.scores[name])
        self._words = _tokenizer()
        self._words.word_to_id = self._model.vocab_dict

    def __len__(self) -> int:
        return len(self._store)

    def retrieve(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """The best `topk` passages of every query, best first; only those that share a word with it."""
        ids = list(self._words.streaming_tokenize(queries, update_vocab="never", allow_empty=False))
        known = [number for number, words in enumerate(ids) if words]
        found: list[list[Passage]] = [[] for _ in ids]
        if known:
            numbers, scores = self._model.retrieve(
                [ids[number] for number in known], k=min(topk, len(self)), show_progress=False
            )
            for number, row, row_scores in zip(known, numbers.tolist(), scores.tolist(), strict=True):
                ranked = zip(row, row_scores, strict=True)
                found[number] = [self._store.get(passage, score) for passage, score in ranked if score > 0]
        return found


@lru_cache(maxsize=4)
def _open(folder: Path, _stamp: int) -> Index:
    return Index(folder)


def _check_corpus(index: Index, path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such corpus")
    corpus, built_from = Corpus(path), index.manifest["corpus"]
    if corpus.stamp() == built_from:
        return
    if _fingerprint(path, path.stat().st_mtime_ns) == index.manifest["fingerprint"]:
        return
    raise ValueError(
        f"{index.folder} was built from another corpus ({built_from['path']}) than {path}: build one with "
        f"`sprout search-index {path} FOLDER`, or drop env.options.corpus"
    )


@lru_cache(maxsize=4)
def _fingerprint(path: Path, _mtime_ns: int) -> str:
    return Corpus(path).fingerprint()


def _check_target(folder: Path, corpus: Corpus, replace: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder} exists and is no search index; give another folder")
    if not replace:
        made_from = _read_manifest(folder)["corpus"]["path"]
        raise ValueError(
            f"{folder} already holds an index of {made_from}; give another folder, or --replace for one of "
            f"{corpus.path}"
        )


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        missing = {"format", "passages", "fingerprint", "corpus", "sizes"} - manifest.keys()
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{folder / MANIFEST} is damaged ({error}): build the index again") from None
    if manifest.get("format", FORMAT) != FORMAT:
        raise ValueError(
            f"{folder} has index format {manifest['format']!r}, this release reads {FORMAT}: build it again"
        )
    if missing:
        raise ValueError(f"{folder / MANIFEST} has no {min(missing)}: build the index again")
    return manifest


def _check_files(folder: Path, sizes: dict[str, int]) -> None:
    """Raises ValueError for a file that is gone, cut short, or that another index has left here."""
    for name, size in sizes.items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else None
        if found != size:
            is_there = "is not there" if found is None else f"has {found:,} bytes, not {size:,}"
            raise ValueError(f"{folder} is a damaged search index ({name} {is_there}): build it again")


def _tokenizer() -> Any:
    return _bm25s().tokenization.Tokenizer(lower=True, stopwords=STOP_WORDS, stemmer=None)


def _bm25s() -> Any:
    try:
        import bm25s
        import bm25s.tokenization
    except ImportError as error:
        raise ImportError(
            f"searching passages needs bm25s ({error}): pip install 'sprout-rl[search]', or give "
            "env.options.server"
        ) from error
    return bm25s
