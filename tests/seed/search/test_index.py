"""The index: what it finds, what it refuses, and the real passages."""

import gzip
import json
import os
import shutil

import numpy as np
import pytest
from library import PASSAGES

from sprout.bench.retrieval import measure_retrieval
from sprout.seed import cli
from sprout.seed.envs.search import index as index_module
from sprout.seed.envs.search.exact_match import mentions
from sprout.seed.envs.search.index import build_index, open_index
from sprout.seed.envs.search.passages import Corpus, Passage, PassageStore
from sprout.seed.envs.search.questions import read_questions


def test_finds_the_right_passage(library):
    index = open_index(library / "index")
    found = index.retrieve(["capital of AUSTRIA", "river", "the", "zyx", "", "danube zyx"], 2)
    assert [[passage.id for passage in row] for row in found][2:] == [[], [], [], ["c"]]
    assert found[0][0] == Passage("d", "Vienna", "Vienna is the capital of Austria.", found[0][0].score)
    assert {passage.id for passage in found[1]} == {"a", "b"} and len(index) == len(PASSAGES)
    assert [p.score for p in found[1]] == sorted((p.score for p in found[1]), reverse=True)


def test_more_passages_than_there_are(library):
    assert len(open_index(library / "index").retrieve(["river nile vienna"], 50)[0]) == 4


def test_queries_do_not_depend_on_each_other(library):
    index = open_index(library / "index")
    queries = ["nile", "river vienna", "capital"]
    assert index.retrieve(queries, 3) == [index.retrieve([query], 3)[0] for query in queries]


def test_is_opened_once_and_mapped(library):
    index = open_index(library / "index")
    assert open_index(library / "index") is index
    assert all(isinstance(index._model.scores[name].base, np.memmap) for name in ("data", "indices"))


def test_built_again_is_opened_again(tmp_path, write):
    first = write(tmp_path / "c.jsonl", PASSAGES)
    build_index(first, tmp_path / "index")
    old = open_index(tmp_path / "index")
    write(first, PASSAGES[:2])
    with pytest.raises(
        ValueError, match=r"already holds an index of .*c.jsonl; give another folder, or --replace"
    ):
        build_index(first, tmp_path / "index")
    build_index(first, tmp_path / "index", replace=True)
    assert len(open_index(tmp_path / "index")) == 2 and len(old) == len(PASSAGES)


def test_another_corpus_is_refused(tmp_path, library, write):
    other = write(tmp_path / "other.jsonl", PASSAGES[:-1])
    with pytest.raises(ValueError, match="was built from another corpus") as error:
        open_index(library / "index", other)
    assert "\n" not in str(error.value) and str(library / "corpus.jsonl") in str(error.value)
    with pytest.raises(FileNotFoundError, match="no such corpus"):
        open_index(library / "index", tmp_path / "nothing.jsonl")


def test_the_same_corpus_is_known_wherever_it_lies(tmp_path, library):
    open_index(library / "index", library / "corpus.jsonl")
    content = (library / "corpus.jsonl").read_bytes()
    (tmp_path / "moved.jsonl").write_bytes(content)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(content))
    for name in ("moved.jsonl", "packed.jsonl.gz"):
        open_index(library / "index", tmp_path / name)


def test_same_size_other_content_is_noticed(tmp_path, write):
    corpus = write(tmp_path / "c.jsonl", PASSAGES)
    build_index(corpus, tmp_path / "index")
    corpus.write_text(corpus.read_text().replace("Nile", "Ouse"))
    os.utime(corpus, ns=(1, 1))
    with pytest.raises(ValueError, match="another corpus"):
        open_index(tmp_path / "index", corpus)


@pytest.mark.parametrize("damage", ["manifest.json", "passages.jsonl", "offsets.npy", "data.csc.index.npy"])
@pytest.mark.parametrize("how", ["gone", "cut", "empty"])
def test_a_damaged_index_is_one_line(tmp_path, library, damage, how):
    folder = shutil.copytree(library / "index", tmp_path / "index")
    content = (folder / damage).read_bytes()
    (folder / damage).unlink()
    if how != "gone":
        (folder / damage).write_bytes(content[: len(content) // 2] if how == "cut" else b"")
    with pytest.raises(ValueError, match=r"holds no search index|damaged|build it again") as error:
        open_index(folder)
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


def test_files_of_another_index_are_refused(tmp_path, library, write):
    build_index(write(tmp_path / "c.jsonl", PASSAGES[:3]), tmp_path / "other")
    for file in sorted((tmp_path / "other").iterdir()):
        folder = shutil.copytree(library / "index", tmp_path / file.name)
        if file.name == "manifest.json" or file.stat().st_size == (folder / file.name).stat().st_size:
            continue
        shutil.copy(file, folder)
        with pytest.raises(ValueError, match=rf"damaged search index \({file.name} has .* bytes, not "):
            open_index(folder)


def test_other_versions_and_folders_are_refused(tmp_path, library):
    folder = shutil.copytree(library / "index", tmp_path / "index")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format": 1}))
    with pytest.raises(ValueError, match="index format 1, this release reads 2"):
        open_index(folder)
    with pytest.raises(
        ValueError, match=r"holds no search index: build it with `sprout search-index .*nothing`"
    ):
        open_index(tmp_path / "nothing")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ValueError, match="exists and is no search index"):
        build_index(library / "corpus.jsonl", tmp_path / "mine", replace=True)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "x", "title": "t"}', "needs title and text, or contents"),
        ('{"title": "t", "text": "x"}', "an object with an id"),
        ('{"id": "x", "contents": 3}', "needs title and text"),
        ("[1]", "an object with an id"),
        ("{", "not a JSON line"),
    ],
)
def test_a_bad_passage_is_named_and_leaves_nothing(tmp_path, line, said):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(json.dumps(PASSAGES[0]) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=said) as error:
        build_index(corpus, tmp_path / "index")
    assert f"{corpus}:2: " in str(error.value) and not (tmp_path / "index").exists()


def test_no_passage_at_all(tmp_path):
    (tmp_path / "c.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="holds no passage"):
        build_index(tmp_path / "c.jsonl", tmp_path / "index")
    with pytest.raises(FileNotFoundError, match="no such corpus"):
        build_index(tmp_path / "d.jsonl", tmp_path / "index")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b"{}\n" * 500)[:-12])
    with pytest.raises(ValueError, match=r"c.jsonl.gz"):
        build_index(tmp_path / "c.jsonl.gz", tmp_path / "index")


def test_an_interrupted_build_leaves_the_old_index(tmp_path, write, monkeypatch):
    corpus = write(tmp_path / "c.jsonl", PASSAGES)
    build_index(corpus, tmp_path / "index")

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(index_module, "swap_folder", stop)
    with pytest.raises(KeyboardInterrupt):
        build_index(corpus, tmp_path / "index", replace=True)
    assert len(open_index(tmp_path / "index")) == len(PASSAGES)


def test_missing_bm25s_names_the_extra(library, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "bm25s", None)
    with pytest.raises(ImportError, match=r"pip install 'sprout-rl\[search\]'"):
        index_module.Index(library / "index")


def test_command(tmp_path, library, capsys):
    assert cli.execute(["search-index", str(library / "corpus.jsonl"), str(tmp_path / "new")]) == 0
    assert "5 passages of" in capsys.readouterr().out
    assert cli.execute(["search-index", str(library / "corpus.jsonl"), str(tmp_path / "new")]) == 2
    assert "error: " in capsys.readouterr().err
    assert cli.execute(["search-index", str(tmp_path / "none"), str(tmp_path / "x")]) == 2


def test_progress_reaches_the_end(library):
    seen = []
    assert len(list(Corpus(library / "corpus.jsonl").read(seen.append))) == len(PASSAGES) and sum(seen) == 100


def test_real_passages(real):
    folder, passages, questions = real
    index, store = open_index(folder, passages), PassageStore(folder)
    assert len(index) == len(store) == 6239 and store.get(1).title == "1 John 5"
    asked = list(read_questions(questions))
    found = index.retrieve([question.text for question in asked], 3)
    hits = [
        any(mentions(passage.contents, question.golden_answers) for passage in row)
        for row, question in zip(found, asked, strict=True)
    ]
    assert np.mean(hits) > 0.6


def test_the_measurement_counts_by_hand(library):
    questions = list(read_questions(library / "train" / "questions.jsonl"))
    result = measure_retrieval(open_index(library / "index"), questions, topk=1, batch=3, rounds=2)
    assert result.hits == {"rivers": (True, True), "towns": (True, False)}
    assert result.summary()["recall@1"] == 0.75 and result.queries == 8 and len(result.batch_s) == 4


@pytest.mark.slow
def test_large_indices_give_the_same_passages(tmp_path, library, real, monkeypatch):
    folder, _, questions = real
    asked = [question.text for question in read_questions(questions)][:50]
    plain = index_module.Index(folder).retrieve(asked, 3)
    monkeypatch.setattr(index_module, "LARGE", 1)
    compiled = index_module.Index(folder).retrieve(asked, 3)
    for one, two in zip(plain, compiled, strict=True):
        np.testing.assert_allclose([p.score for p in one], [p.score for p in two], rtol=1e-5)
