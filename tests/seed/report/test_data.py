"""What the report gathers equals what the run wrote; odd and unfinished folders are said, not swallowed."""

import shutil

import numpy as np
import orjson
import pytest
from rich.console import Console
from tokenizers import Tokenizer

from sprout.engine.metrics import read_metrics
from sprout.seed.report import audit as audit_module
from sprout.seed.report.audit import Limits, audit
from sprout.seed.report.case import CASE_BYTES
from sprout.seed.report.curves import thinned
from sprout.seed.report.data import report_data
from sprout.seed.report.pieces import Pieces
from sprout.seed.report.runs import find_runs
from sprout.seed.run_dir import RunDir, read_json
from sprout.seed.trajectory import read_trajectories

DELTAS = {1: [[0.5, -0.5], [0.1], [1.0], [0.2, 0.2]], 4: [[-3.0], [0.3]]}


def cases_of(folder, **limits):
    return audit(folder, "run", Pieces(None), Limits(**limits), Console(quiet=True))


def test_a_real_run_is_gathered_as_it_was_written(tiny):
    [run] = report_data([tiny.folder.root], Limits())["runs"]
    lines = read_metrics(tiny.folder.root / "metrics.jsonl")
    assert run["metrics"]["step"] == [1, 2, 3, 4] and run["finished"] and run["audit"]["notes"] == []
    reuse = [line["seed/forest_reuse_ratio"] for line in lines]
    assert np.allclose(run["metrics"]["values"]["seed/forest_reuse_ratio"], reuse, rtol=1e-4)
    evaluation = read_json(tiny.folder.evaluation(2))["student"]
    assert run["evals"][1]["student"]["success"] == evaluation["success_rate"]
    assert [run["evals"][1]["student"][k] for k in ("low", "high")] == evaluation["ci95"]
    assert run["summary"]["success_final"] == read_json(tiny.folder.summary_file)["success_final"]
    assert run["audit"]["updates"] == [1, 4] and run["audit"]["played"] == len(run["audit"]["cases"]) == 8


def test_tokens_of_a_real_run_read_as_the_response_and_carry_its_scores(tiny):
    [run] = report_data([tiny.folder.root], Limits())["runs"]
    played = {f"tiny/{u}/{t.id}": t for u in (1, 4) for t in read_trajectories(tiny.folder.trajectories(u))}
    assert {case["id"] for case in run["audit"]["cases"]} == set(played)
    for case in run["audit"]["cases"]:
        trajectory = played[case["id"]]
        assert case["teacher"] == trajectory.teacher_skill and case["success"] == trajectory.success
        for turn, record in zip(case["turns"], trajectory.turns, strict=True):
            assert turn["ids"] == record.action and record.response in "".join(turn["texts"])
            delta = np.subtract(turn["l_skill"], turn["l_theta"])
            assert np.allclose(delta, turn["delta"], atol=2e-4)
            beta = tiny.config.objective.beta
            assert np.allclose(turn["gate"], 1 / (1 + np.exp(-beta * delta)), atol=2e-3)
    tokens = {
        u: sum(len(r.action) for t in played.values() if t.update == u for r in t.turns) for u in (1, 4)
    }
    for histogram in run["audit"]["histograms"]:
        assert sum(histogram["delta"]) == sum(histogram["gate"]) == tokens[histogram["update"]]


def test_compared_runs_and_seeds_are_found_and_averaged(tmp_path, write_run):
    deltas = {2: [[0.1]], 4: [[0.2]]}
    write_run(tmp_path / "c" / "seed-0", deltas, "run.seed=0")
    write_run(tmp_path / "c" / "seed-1", deltas, "run.seed=1")
    write_run(tmp_path / "c" / "seed-0" / "compare" / "grpo", deltas, "objective.name=grpo")
    data = report_data([tmp_path / "c"], Limits())
    assert [run["name"] for run in data["runs"]] == ["seed-0", "seed-0/compare/grpo", "seed-1"]
    [method] = data["methods"]
    assert (method["method"], method["seeds"]) == ("seed", 2)
    assert [(p["x"], p["y"]) for p in method["points"]] == [(2, 0.5), (4, 0.5)]


def test_a_compared_run_takes_the_tokenizer_of_its_origin(tmp_path, write_run):
    folder = write_run(tmp_path / "a", {1: [[0.1]]})
    write_run(folder.root / "compare" / "grpo", {1: [[0.1]]}, "objective.name=grpo", tokenizer=False)
    assert all(isinstance(run.tokenizer(), Tokenizer) for run in find_runs([folder.root]))
    bare = write_run(tmp_path / "b", {1: [[0.1]]}, tokenizer=False)
    with pytest.warns(UserWarning, match="tokens are shown as ids"):
        [run] = report_data([bare.root], Limits())["runs"]
    assert run["audit"]["cases"][0]["turns"][0]["texts"] == ["#7 ", "#8 ", "#2 "]


@pytest.mark.parametrize("text", ["put a mug in the fridge 1 .", "élan 😀\n  two  blanks"])
def test_pieces_join_to_the_text(bpe_chat, text):
    ids = bpe_chat.encode(text)
    pieces = Pieces(bpe_chat.text._backend)(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text or "\ufffd" in "".join(pieces)


def test_pieces_of_words_keep_their_blanks(word_chat):
    assert Pieces(word_chat.text._backend)(word_chat.encode("put a mug")) == ["put", " a", " mug"]


@pytest.mark.parametrize("count", [0, 1, 5, 9, 1000])
def test_thinned_keeps_the_last_and_what_it_kept_before(count):
    kept, stride = thinned(range(count), 8)
    assert len(kept) <= 9 and kept == sorted(set(range(0, count, stride)) | set(range(count)[-1:]))


def test_the_telling_cases_are_picked_and_the_draw_stays_the_same(tmp_path, write_run):
    rows = [[0.01 * i] for i in range(40)]
    rows[10], rows[20] = [5.0], [-4.0]
    folder = write_run(tmp_path / "a", {1: rows})
    found = cases_of(folder, cases=8)
    assert (found.played, len(found.cases)) == (40, 8)
    assert found.cases[0]["id"] == "run/1/train-1/10" and found.cases[0]["why"] == "largest |Delta|"
    assert sum(case["why"] == "random" for case in found.cases) == 2
    assert any(case["why"] == "invalid skill" and not case["skill"]["valid"] for case in found.cases)
    assert found.cases == cases_of(folder, cases=8).cases


def test_disagreement_is_delta_against_the_outcome(tmp_path, write_run):
    found = cases_of(write_run(tmp_path / "a", {1: [[0.5], [0.5], [-0.5], [-0.5]]}))
    against = {case["id"][-1]: case["disagreement"] for case in found.cases}
    assert against == {"0": 0.5, "1": None, "2": None, "3": 0.5}


def test_the_page_stays_small_whatever_the_run_holds(tmp_path, write_run, edit_lines):
    folder = write_run(tmp_path / "a", {u: [[0.1]] * 30 for u in range(1, 30)})
    found = cases_of(folder, updates=4, bytes=40_000)
    assert len(found.updates) <= 5 and found.updates[0] == 1 and found.updates[-1] == 29
    assert 0 < len(orjson.dumps(found.cases)) <= 40_000 and len(found.cases) < found.played

    def grow(lines):
        lines[0]["turns"] = [{**lines[0]["turns"][0], "observation": "o" * 100_000} for _ in range(99)]

    edit_lines(folder.trajectories(29), grow)
    big = next(c for c in cases_of(folder).cases if c["id"] == "run/29/train-1/0")
    assert len(orjson.dumps(big)) < 2 * CASE_BYTES and big["cut"] > 0
    assert "characters more" in big["turns"][0]["observation"]


def test_an_update_is_read_once_until_its_files_change(tmp_path, write_run, edit_lines, monkeypatch):
    folder, known, console = write_run(tmp_path / "a", DELTAS), {}, Console(quiet=True)
    read = []
    original = audit_module._Update.audit
    monkeypatch.setattr(
        audit_module._Update, "audit", lambda u, *a: read.append(u._update) or original(u, *a)
    )
    first = audit(folder, "run", Pieces(None), Limits(), console, known)
    assert audit(folder, "run", Pieces(None), Limits(), console, known) == first and read == [1, 4]
    edit_lines(folder.trajectories(4), lambda lines: lines[0].update(task="another"))
    changed = audit(folder, "run", Pieces(None), Limits(), console, known)
    assert read == [1, 4, 4] and any(case["task"] == "another" for case in changed.cases)


def test_a_run_without_scores_shows_its_trajectories(tmp_path, write_run):
    folder = write_run(tmp_path / "a", DELTAS)
    shutil.rmtree(folder.root / "scores")
    found = cases_of(folder)
    assert not found.scored and found.histograms == [] and len(found.cases) == 6
    assert found.cases[0]["turns"][0].get("delta") is None and found.cases[0]["turns"][0]["sampled"]


def test_a_run_in_progress_reports_what_there_is(tmp_path, write_run):
    folder = write_run(tmp_path / "a", DELTAS)
    with (folder.root / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step":5,"episode/succ')
    (folder.root / "trajectories" / ".tmp-000005.jsonl").write_bytes(b"{")
    (folder.root / "scores" / ".tmp-000005.jsonl").write_bytes(b"{")
    with pytest.warns(UserWarning, match="unfinished"):
        [run] = report_data([folder.root], Limits())["runs"]
    assert run["metrics"]["step"] == [1, 4] and run["audit"]["updates"] == [1, 4] and not run["finished"]


def test_a_run_that_has_only_begun_gives_an_empty_report(tmp_path, write_run):
    [run] = report_data([write_run(tmp_path / "a", {}).root], Limits())["runs"]
    assert run["metrics"]["step"] == run["evals"] == run["audit"]["cases"] == []


def test_lines_that_cannot_be_read_are_left_out_and_named(tmp_path, write_run, edit_lines, monkeypatch):
    folder = write_run(tmp_path / "a", DELTAS)
    file = folder.trajectories(1)
    file.write_bytes(file.read_bytes()[:-40])
    edit_lines(folder.scores(1), lambda lines: lines[0].update(gate="high"))
    edit_lines(folder.scores(4), lambda lines: lines[0]["delta"].pop())
    with pytest.warns(UserWarning, match="left out"):
        found = cases_of(folder)
    assert len(found.cases) == 5 and len(found.notes) == 3
    assert "000001.jsonl:1: gate" in found.notes[0] and "000001.jsonl:4: not a JSON line" in found.notes[1]
    assert "do not fit" in found.notes[2]
    monkeypatch.setattr("sprout.seed.report.audit.LONGEST_LINE", 500)
    with pytest.warns(UserWarning, match="is longer than"):
        assert cases_of(folder).cases == []


def bad_metrics(folder):
    (folder.root / "metrics.jsonl").write_bytes(b"{}\n")


def bad_evaluation(folder):
    folder.evaluation(4).write_text('{"updates": 4}')


def bad_config(folder):
    folder.config_file.write_text("train: {updatess: 3}")


def bad_tokenizer(folder):
    (folder.stage1_model / "tokenizer.json").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (bad_metrics, "metrics.jsonl: line 1"),
        (bad_evaluation, "000004.json: not an evaluation"),
        (bad_config, "updatess"),
        (bad_tokenizer, "tokenizer.json: not a tokenizer"),
    ],
)
def test_what_spoils_a_run_is_one_error_that_names_the_file(tmp_path, write_run, spoil, words):
    folder = write_run(tmp_path / "a", DELTAS)
    spoil(folder)
    with pytest.raises(ValueError, match=words) as error:
        report_data([folder.root], Limits())
    assert len(str(error.value).splitlines()) == 1


def test_a_folder_without_a_run_is_an_error(tmp_path):
    for folder, words in ((tmp_path, "holds no run"), (tmp_path / "nonsuch", "does not exist")):
        with pytest.raises(FileNotFoundError, match=words):
            report_data([folder], Limits())


def test_missing_trajectories_are_said(tmp_path, write_run):
    folder = write_run(tmp_path / "a", DELTAS)
    folder.trajectories(4).unlink()
    with pytest.warns(UserWarning, match="update 4 has no cases"):
        assert cases_of(RunDir(folder.root)).played == 4
