"""Question files: splits, order, names of sets, and what is said of bad ones."""

import gzip
import json

import pytest

from sprout.seed.envs.search.questions import choose_question, question_files, read_questions


def numbered(count, **fields):
    return [
        {"id": str(i), "question": f"what is number {i}?", "golden_answers": [str(i)]} | fields
        for i in range(count)
    ]


def texts(sources, split, count):
    return [choose_question(sources, split, seed).text for seed in range(count)]


def test_one_file_is_divided(tmp_path, write):
    sources = question_files(str(write(tmp_path / "q.jsonl", numbered(300))))
    found = {split: set(texts(sources, split, 300)) for split in ("train", "select", "report")}
    assert set.union(*found.values()) == {f"what is number {i}?" for i in range(300)}
    assert sum(map(len, found.values())) == 300
    assert len(found["train"]) > len(found["report"]) > len(found["select"]) > 10


def test_the_same_question_of_two_sets_falls_to_one_split(tmp_path, write):
    files = [write(tmp_path / f"{name}.jsonl", numbered(100)) for name in ("one", "two")]
    sources = question_files([str(file) for file in files])
    found = [set(texts(sources, split, 200)) for split in ("train", "select", "report")]
    assert sum(map(len, found)) == 100


def test_splits_by_name_and_test_for_both_panels(tmp_path, write):
    train = write(tmp_path / "nq" / "train.jsonl", numbered(10))
    test = write(tmp_path / "b.jsonl", [{"question": f"b {i}", "golden_answers": "x"} for i in range(40)])
    sources = question_files({"train": str(train), "test": [str(test)]})
    assert len(set(texts(sources, "train", 10))) == 10
    assert choose_question(sources, "train", 0).dataset == "nq"
    select, report = set(texts(sources, "select", 40)), set(texts(sources, "report", 40))
    assert select and report and not select & report and len(select | report) == 40
    assert choose_question(sources, "select", 0).golden_answers == ("x",)


def test_panels_take_turns_among_sets_and_go_round(tmp_path, write):
    big = write(tmp_path / "big.jsonl", numbered(50))
    small = write(tmp_path / "small.jsonl.jsonl", [{"question": "s?", "golden_answers": ["s"]}] * 3)
    sources = question_files({"report": [str(big), str(small)]})
    found = [choose_question(sources, "report", seed) for seed in range(54)]
    assert [q.dataset for q in found[:7]] == ["big", "small.jsonl"] * 3 + ["big"]
    assert found[53] == found[0] and len({q.id for q in found[:53]}) == 53


def test_folders_and_gzip(tmp_path, write):
    write(tmp_path / "sets" / "a.jsonl", numbered(3))
    with gzip.open(tmp_path / "sets" / "b.jsonl.gz", "wt") as file:
        file.write("\n".join(json.dumps(record) for record in numbered(2)) + "\n\n")
    (tmp_path / "sets" / "notes.txt").write_text("no questions")
    (files,) = question_files({"train": str(tmp_path / "sets")}).values()
    assert [(file.name, len(list(read_questions(file)))) for file in files] == [
        ("a.jsonl", 3),
        ("b.jsonl.gz", 2),
    ]


def test_a_changed_file_is_read_again(tmp_path, write):
    path = write(tmp_path / "q.jsonl", numbered(1))
    sources = question_files({"train": str(path)})
    assert choose_question(sources, "train", 0).text == "what is number 0?"
    path.write_text('{"question": "new?", "golden_answers": ["x"]}\n')
    assert choose_question(sources, "train", 0).text == "new?"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "1", "question": "q?"}', "has no golden_answers"),
        ('{"id": "1", "question": "q?", "golden_answers": []}', "has no golden_answers"),
        ('{"id": "1", "question": "q?", "golden_answers": null}', "has no golden_answers"),
        ('{"id": "1", "question": "q?", "golden_answers": [3]}', "holds something that is no text"),
        ('{"id": "1", "question": "q?", "golden_answers": [" "]}', "or an empty one"),
        ('{"id": "1", "golden_answers": ["a"]}', "a question is an object with"),
        ('["q?"]', "a question is an object with"),
        ("{", "not a JSON line"),
        ("\udcff", "not a JSON line"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, said):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "q?", "golden_answers": ["a"]}\n' + line, errors="surrogateescape")
    with pytest.raises(ValueError, match=said) as error:
        choose_question(question_files({"train": str(path)}), "train", 0)
    assert f"{path}:2: " in str(error.value) and "\n" not in str(error.value)


def test_other_errors_name_the_thing(tmp_path, write):
    path = str(write(tmp_path / "q.jsonl", numbered(1)))
    sources = question_files({"train": path})
    with pytest.raises(ValueError, match="unknown split 'test'; use one of train, select, report"):
        choose_question(sources, "test", 0)
    with pytest.raises(ValueError, match=r"no questions for select: give .*select: FILE.* or \{test: FILE\}"):
        choose_question(sources, "select", 0)
    with pytest.raises(ValueError, match="no split 'valid'"):
        question_files({"valid": path})
    with pytest.raises(ValueError, match=r"nothing.jsonl: no question file"):
        question_files(str(tmp_path / "nothing.jsonl"))
    with pytest.raises(ValueError, match="no question file"):
        question_files({"test": str(tmp_path / "empty")})
    with pytest.raises(ValueError, match="falls to"):
        [choose_question(question_files(path), split, 0) for split in ("train", "select", "report")]
    damaged = tmp_path / "q.jsonl.gz"
    damaged.write_bytes(gzip.compress(b"{}\n" * 500)[:-20])
    with pytest.raises(ValueError, match=r"q.jsonl.gz.*"):
        list(read_questions(damaged))
