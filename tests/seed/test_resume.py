"""Killed at any moment and resumed, a run ends with the same bits as one that was left alone."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from sprout.engine import checkpoint
from sprout.engine.metrics import Timings, read_metrics
from sprout.seed.config import load_config
from sprout.seed.interrupts import Interrupted, finishing
from sprout.seed.run import perform, start
from sprout.seed.run_dir import RunDir

CLOCK = ("timing_s/", "perf/", "seed/pair_tokens_per_s")
OF_TRAINING = ("step-0*", "train.json", "eval.json", "metrics.jsonl", "evals")
OF_TRAINING += ("trajectories", "scores", "tensorboard")
KILLS = 8
DURATION_S = {"rollout": 0.4, "update": 0.15, "checkpoint": 0.05, "eval": 0.5}


def metrics(folder):
    """Everything in metrics.jsonl that does not depend on the clock."""
    lines = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in line.items() if not k.startswith(CLOCK)} for line in lines]


def contents(folder, pattern):
    return {file.name: file.read_bytes() for file in sorted(folder.glob(pattern))}


def tensors(folder):
    return {k: v for file in sorted(folder.glob("*.safetensors")) for k, v in load_file(file).items()}


def assert_same_checkpoint(ours, theirs):
    ours, theirs = checkpoint.latest(ours), checkpoint.latest(theirs)
    assert ours.name == theirs.name
    assert contents(ours, "model/*") == contents(theirs, "model/*")
    states = [tensors(folder / "trainer") for folder in (ours, theirs)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def assert_same_training(run, reference):
    assert_same_checkpoint(run.checkpoints, reference.checkpoints)
    assert metrics(run.root) == metrics(reference.root)
    for pattern in ("trajectories/*", "scores/*", "evals/*"):
        assert contents(run.root, pattern) == contents(reference.root, pattern)


def open_tiny(folder, *overrides):
    return start(load_config("tiny", [f"run.dir={folder}", *overrides]), Console(quiet=True))


def before_training(tiny, folder):
    """A copy of the finished run as it was before its train stage."""
    copy = folder / "tiny"
    shutil.copytree(tiny.folder.root, copy, ignore=shutil.ignore_patterns(*OF_TRAINING))
    shutil.copytree(tiny.folder.base, copy / "base", dirs_exist_ok=True)
    return RunDir(copy)


def kill(seconds=0.0):
    """SIGKILL to this process after so many seconds."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


def kill_in(phase, occurrence, seconds):
    """Kill this process `seconds` after training enters `phase` for the given time."""
    original, entered = Timings.__call__, []

    def watched(self, name):
        entered.append(name)
        if name == phase and entered.count(phase) == occurrence:
            kill(seconds)
        return original(self, name)

    Timings.__call__ = watched


def in_killed_child(action):
    """Runs `action` in a child process, which SIGKILL must end."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def train_killed_and_resumed(tiny, folder, phase, draw):
    run = before_training(tiny, folder)

    def die():
        kill_in(phase, draw.choice([1, 2]), draw.uniform(0, DURATION_S[phase]))
        perform(open_tiny(folder), "train")
        os.kill(os.getpid(), signal.SIGKILL)  # a fast machine has finished by then

    in_killed_child(die)
    perform(open_tiny(folder, "run.resume=true"), "train")
    return run


@pytest.mark.parametrize("phase", DURATION_S)
def test_training_killed_and_resumed_gives_the_same_bits(tiny, tmp_path, phase):
    run = train_killed_and_resumed(tiny, tmp_path, phase, random.Random(phase))
    assert_same_training(run, tiny.folder)


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(12))
def test_training_killed_at_more_moments(tiny, tmp_path, trial):
    draw = random.Random(trial)
    run = train_killed_and_resumed(tiny, tmp_path, draw.choice(list(DURATION_S)), draw)
    assert_same_training(run, tiny.folder)


@pytest.mark.parametrize("occurrence", [1, 3])
def test_after_sigterm_the_update_is_finished_and_training_goes_on_with_the_same_bits(
    tiny, tmp_path, monkeypatch, occurrence
):
    run = before_training(tiny, tmp_path)
    original, entered = Timings.__call__, []

    def watched(self, name):
        entered.append(name)
        if name == "update" and entered.count("update") == occurrence:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, name)

    monkeypatch.setattr(Timings, "__call__", watched)
    with pytest.raises(Interrupted) as ended:
        perform(open_tiny(tmp_path), "train")
    assert ended.value.exit_code == 128 + signal.SIGTERM
    assert checkpoint.latest(run.checkpoints).name == f"step-{occurrence:06d}"
    assert run.result("train") is None and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    perform(open_tiny(tmp_path, "run.resume=true"), "train")
    assert_same_training(run, tiny.folder)


def test_a_second_sigterm_interrupts_at_once():
    with finishing() as asked:
        assert not asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked()
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)


def test_base_training_killed_and_resumed_gives_the_same_bits(tiny, tmp_path):
    def die():
        original = checkpoint.save

        def save_and_die(*arguments, **options):
            original(*arguments, **options)
            kill()
            time.sleep(60)

        checkpoint.save = save_and_die
        perform(open_tiny(tmp_path), "base")

    in_killed_child(die)
    run = open_tiny(tmp_path, "run.resume=true")
    perform(run, "base")
    for phase in ("acting", "reading"):
        assert metrics(run.folder.base / phase) == metrics(tiny.folder.base / phase)
        ours, theirs = (folder.base / phase / "checkpoints" for folder in (run.folder, tiny.folder))
        assert_same_checkpoint(ours, theirs)
    assert contents(run.folder.base, "model/*") == contents(tiny.folder.base, "model/*")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_command_killed_again_and_again_gives_the_same_bits(tiny, tmp_path):
    """`sprout run`, killed at random moments of its stages and resumed, and at last left alone."""
    command = [sys.executable, "-c", "from sprout.seed.cli import main; main()", "run", "tiny"]
    command += [f"run.dir={tmp_path}", "--resume"]
    draw = random.Random(0)
    for _ in range(KILLS):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            assert process.wait(timeout=draw.uniform(8, 40)) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    assert_same_training(RunDir(tmp_path / "tiny"), tiny.folder)
