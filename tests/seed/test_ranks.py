"""Recipes on several gloo ranks under torchrun: what one process does, whatever drops or dies."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from test_resume import before_training

from sprout.engine import checkpoint
from sprout.engine.metrics import read_metrics
from sprout.seed.run_dir import read_json
from sprout.seed.trajectory import read_trajectories

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
PROGRAM = Path(__file__).with_name("ranks_program.py")
OF_THE_SPLIT = re.compile(r"timing_s/|perf/|seed/forest_|rows$|seed/pair_tokens|training/rollout_probs_diff")


def start(ranks, *arguments, restarts=0):
    """`arguments` of python on so many ranks, all output in one pipe."""
    launcher = [*TORCHRUN, f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
    return subprocess.Popen(
        [*(launcher if ranks > 1 else [sys.executable]), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process, code=0):
    """What the process has printed; it must end with `code`."""
    printed, _ = process.communicate(timeout=900)
    assert process.returncode == code, printed
    return printed


def learned(folder):
    """Losses and other results of a metrics file, without what depends on the clock or the micro-batches."""
    return [
        {name: value for name, value in line.items() if not OF_THE_SPLIT.search(name)}
        for line in read_metrics(folder / "metrics.jsonl")
    ]


def played(file):
    """Trajectories without the log-probs, and those."""
    plain, logprobs = [], []
    for trajectory in read_trajectories(file):
        values = trajectory.model_dump()
        logprobs += [x for turn in values["turns"] for x in turn.pop("logprobs")]
        plain.append(values)
    return plain, logprobs


def assert_same_weights(ours, theirs):
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        # AdamW's step is as large for a gradient that is all rounding, as a key bias's mostly is, as for any.
        bound = 1e-2 if name.endswith("k_proj.bias") else 2e-4
        assert (ours[name] - tensor).norm() <= bound * tensor.norm(), name


def assert_same_metrics(ours, theirs):
    for one, two in zip(learned(ours), learned(theirs), strict=True):
        assert one == pytest.approx(two, rel=1e-3, abs=1e-6)


def assert_same_training(ours, theirs):
    """Stage 2: the same files, episodes, evaluations; losses and weights up to rounding."""
    assert_same_metrics(ours.root, theirs.root)
    for folder in ("trajectories", "evals"):
        names = [sorted(file.name for file in (run.root / folder).iterdir()) for run in (ours, theirs)]
        assert names[0] == names[1]
    for file in (theirs.root / "trajectories").iterdir():
        (plain, logprobs), (expected, expected_logprobs) = (
            played(run.root / "trajectories" / file.name) for run in (ours, theirs)
        )
        assert plain == expected and logprobs == pytest.approx(expected_logprobs, rel=1e-3, abs=1e-5)
    for file in (theirs.root / "evals").iterdir():
        assert read_json(ours.root / "evals" / file.name) == read_json(file)
    assert_same_weights(*(checkpoint.latest(run.checkpoints) / "model" for run in (ours, theirs)))


def test_two_ranks_train_and_evaluate_as_one_process(tiny, tmp_path):
    run = before_training(tiny, tmp_path)
    printed = finished(start(2, "-m", "sprout", "run", "tiny", f"run.dir={tmp_path}", "run.resume=true"))
    assert_same_training(run, tiny.folder)
    assert run.result("eval")["final"] == tiny.folder.result("eval")["final"]
    assert printed.count("update=1 ") == printed.count("summary: ") == 1, "rank 0 alone talks"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_ranks_run_the_whole_recipe_as_one_process(tiny, tmp_path):
    run = type(tiny.folder)(tmp_path / "tiny")
    finished(start(2, "-m", "sprout", "run", "tiny", f"run.dir={tmp_path}"))
    for part in ("base/acting", "base/reading", "stage1/sft"):
        assert_same_metrics(run.root / part, tiny.folder.root / part)
    assert_same_weights(run.stage1_model, tiny.folder.stage1_model)
    # Stage 2 starts from weights that are equal up to rounding, and a later update may sample another token.
    for file in ("stage1/collected/000000", "stage1/annotated/000000", "trajectories/000001"):
        ours, theirs = (folder / f"{file}.jsonl" for folder in (run.root, tiny.folder.root))
        assert played(ours)[0] == played(theirs)[0]
    for stage in ("collect", "annotate", "material"):
        ours, theirs = (folder.result(stage) for folder in (run, tiny.folder))
        assert {**ours, "wall_s": 0} == {**theirs, "wall_s": 0}
    assert run.result("eval")["final"]["tasks"] == tiny.folder.result("eval")["final"]["tasks"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_whose_ranks_die_is_restarted_by_torchrun_and_goes_on(tiny, tmp_path):
    run = before_training(tiny, tmp_path)
    arguments = ("-m", "sprout", "run", "tiny", f"run.dir={tmp_path}", "run.resume=true")
    process = start(2, *arguments, restarts=2)
    for update in (1, 3):
        while not run.trajectories(update).is_file():
            assert process.poll() is None
            time.sleep(0.1)
        os.kill(max(children(process.pid)), signal.SIGKILL)
    assert "going on after update 2" in finished(process)
    assert_same_training(run, tiny.folder)


def children(pid):
    """The ranks that a torchrun process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    "cases", [12, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_groups_that_drop_at_random_and_a_rank_without_a_task(tmp_path, cases):
    found = []
    for ranks in (1, 3):
        finished(start(ranks, PROGRAM, tmp_path / str(ranks), cases))
        found.append(json.loads((tmp_path / str(ranks)).read_text()))
    assert found[0].pop() == found[1].pop(), "the panel, of fewer tasks than ranks"
    assert any(isinstance(case, str) for case in found[0]), "once every group is dropped"
    assert {case["dropped_groups"] for case in found[0] if isinstance(case, dict)} >= {0, 1, 2}
    for one, three in zip(*found, strict=True):
        if isinstance(one, dict):
            assert {**three, "played": 0} == pytest.approx({**one, "played": 0}, rel=1e-4, abs=1e-6)
            assert three["played"] == one["played"]


def test_a_user_error_is_told_once_and_ends_all_ranks(tiny, tmp_path):
    shutil.copytree(tiny.folder.root, tmp_path / "tiny")
    arguments = ("-m", "sprout", "run", "tiny", f"run.dir={tmp_path}", "train.updates=7")
    printed = finished(start(2, *arguments), code=1)
    assert printed.count("error: ") == printed.count("holds a run with train.updates = 4, not 7") == 1
