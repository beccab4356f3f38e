"""Checkpoints: exact continuation, crashes at every point of a save, damage, a full disk, choosing one."""

import errno
import json
import os
import resource
import shutil
import subprocess

import pytest
import torch
from tiny import tiny_decoder
from transformers import AutoModelForCausalLM

from sprout.engine import checkpoint
from sprout.engine.checkpoint import latest, load, resolve, save, step_folder, supersede_later, verify
from sprout.engine.optimizer import Optimizer, OptimizerConfig
from sprout.engine.schedule import Schedule

STATE = {"update": 3, "rng": {"state": 2**127 - 1, "inc": 7}, "best": 0.1 + 0.2, "note": None}


class Run:
    """A decoder with its optimizer, trained on a fixed sequence of losses."""

    def __init__(self, name="adamw", dtype=torch.float32, seed=0, **config):
        self.decoder = tiny_decoder(seed=seed, dtype=dtype, **config)
        schedule = Schedule("cosine", total_steps=8, warmup_ratio=0.2)
        self.optimizer = Optimizer(self.decoder, OptimizerConfig(name=name, lr=1e-3, schedule=schedule))

    def train(self, updates):
        for update in updates:
            self.optimizer.zero_grad()
            generator = torch.Generator().manual_seed(update)
            loss = sum((p * torch.randn(p.shape, generator=generator)).sum().tanh() for p in self.weights())
            loss.backward()
            self.optimizer.step()
        return self

    def weights(self):
        return list(self.decoder.parameters())

    def save(self, folder, **options):
        save(folder, self.decoder, self.optimizer, STATE, **options)
        return folder

    def load(self, folder):
        return load(folder, self.decoder, self.optimizer)

    def equals(self, other):
        mine, theirs = self.optimizer.tensors(), other.optimizer.tensors()
        weights = zip(self.weights(), other.weights(), strict=True)
        return (
            all(torch.equal(p, q) for p, q in weights)
            and mine.keys() == theirs.keys()
            and all(torch.equal(mine[name], theirs[name]) for name in mine)
            and self.optimizer.updates == other.optimizer.updates
        )


@pytest.fixture(scope="module")
def trained():
    return Run().train(range(2))


def names(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_resumed_run_is_bit_identical(tmp_path, name, dtype):
    straight = Run(name, dtype).train(range(3))
    straight.save(step_folder(tmp_path, 3))
    straight.train(range(3, 6))
    resumed = Run(name, dtype, seed=9)
    assert resumed.load(step_folder(tmp_path, 3)) == STATE
    assert not resumed.equals(straight)
    assert resumed.train(range(3, 6)).equals(straight)


def test_layout_and_model_folder(tmp_path, trained):
    folder = trained.save(step_folder(tmp_path, 40))
    assert names(tmp_path) == ["step-000040"]
    assert names(folder) == ["COMPLETE", "model", "state.json", "trainer"]
    assert all(file.suffix == ".safetensors" for file in (folder / "trainer").iterdir())
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert torch.equal(model.get_input_embeddings().weight, trained.decoder.model.embed_tokens.weight)


def test_trainer_state_is_cut_into_shards(tmp_path, trained, monkeypatch):
    monkeypatch.setattr(checkpoint, "TRAINER_SHARD_BYTES", 20_000)
    folder = trained.save(step_folder(tmp_path, 2))
    assert len(names(folder / "trainer")) > 2
    again = Run(seed=4)
    again.load(folder)
    assert again.equals(trained)


def test_saving_leaves_the_run_as_it_was(tmp_path):
    run, twin = Run().train(range(2)), Run().train(range(2))
    run.save(step_folder(tmp_path, 2))
    assert run.train(range(2, 4)).equals(twin.train(range(2, 4)))


@pytest.mark.parametrize("value", [{1, 2}, torch.zeros(2), object()])
def test_state_that_json_cannot_hold_is_named(tmp_path, trained, value):
    with pytest.raises(ValueError, match="checkpoint state 'odd' cannot be stored"):
        save(step_folder(tmp_path, 1), trained.decoder, trained.optimizer, {"odd": value})
    assert names(tmp_path) == []


def test_another_optimizer_or_precision_is_refused_before_anything_changes(tmp_path, trained):
    folder = trained.save(step_folder(tmp_path, 2))
    for other in (Run("muon", seed=3), Run(dtype=torch.bfloat16, seed=3)):
        before = [p.detach().clone() for p in other.weights()]
        with pytest.raises(ValueError, match=r"trainer: optimizer state does not fit") as error:
            other.load(folder)
        assert "\n" not in str(error.value)
        assert all(torch.equal(p, q) for p, q in zip(other.weights(), before, strict=True))


def test_another_model_is_refused(tmp_path, trained):
    folder = trained.save(step_folder(tmp_path, 2))
    with pytest.raises(ValueError, match="does not fit"):
        Run(layers=1).load(folder)


def test_newer_schema_is_refused(tmp_path, trained, monkeypatch):
    monkeypatch.setattr(checkpoint, "SCHEMA_VERSION", 2)
    folder = trained.save(step_folder(tmp_path, 2))
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"state.json has schema_version 2, this version of sprout reads 1"):
        Run().load(folder)


# Damage


DAMAGED = ["state.json", "model/model.safetensors", "model/config.json", "trainer"]


def damaged_file(folder, name):
    return next((folder / name).iterdir()) if (folder / name).is_dir() else folder / name


@pytest.mark.parametrize("name", DAMAGED)
def test_truncated_missing_and_altered_files_are_named(tmp_path, trained, name):
    trained.save(step_folder(tmp_path, 1))
    folder = trained.save(step_folder(tmp_path, 2))
    file = damaged_file(folder, name)
    content = file.read_bytes()
    flipped = content[:-20] + bytes([content[-20] ^ 1]) + content[-19:]
    for spoil, error, message in (
        (lambda: file.write_bytes(content[:-7]), ValueError, "bytes instead of"),
        (lambda: file.write_bytes(flipped), ValueError, "is damaged"),
        (lambda: file.unlink(), FileNotFoundError, "is missing"),
    ):
        spoil()
        with pytest.raises(error, match=message) as raised:
            Run().load(folder)
        assert str(file) in str(raised.value)
        assert str(raised.value).endswith("resume from step-000001")
        assert "\n" not in str(raised.value)
    file.write_bytes(content)
    verify(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"state.json": 3}'])
def test_a_damaged_marker_is_named(tmp_path, trained, content):
    folder = trained.save(step_folder(tmp_path, 2))
    (folder / "COMPLETE").write_bytes(content)
    with pytest.raises(ValueError, match="COMPLETE is damaged; there is no other checkpoint"):
        Run().load(folder)


# Crashes


STAGES = ["fresh_folder", "save_model", "_write_trainer", "swap_folder", "replace_file"]


def die_in(stage, after, action):
    """Run `action` in a child process that dies, without any clean-up, before or after `stage` of a save."""
    child = os.fork()
    if child == 0:
        original = getattr(checkpoint, stage)

        def dying(*arguments):
            if after:
                original(*arguments)
            os._exit(9)

        setattr(checkpoint, stage, dying)
        action()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_killed_anywhere_the_older_checkpoint_is_latest(tmp_path, trained, stage, after):
    older, newer = trained.save(step_folder(tmp_path, 1)), step_folder(tmp_path, 2)
    die_in(stage, after, lambda: trained.save(newer, keep_last=1))
    if (stage, after) in (("swap_folder", True), ("replace_file", False)):
        with pytest.warns(UserWarning, match="half-written step-000002"):
            assert latest(tmp_path) == older
    else:
        assert latest(tmp_path) == (newer if (stage, after) == ("replace_file", True) else older)
    assert Run().load(older) == STATE
    trained.save(newer, keep_last=1)
    assert names(tmp_path) == ["step-000002"]


def test_an_exception_during_a_save_leaves_no_trace(tmp_path, trained, monkeypatch):
    older = trained.save(step_folder(tmp_path, 1))

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "_write_trainer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained.save(step_folder(tmp_path, 2), keep_last=1)
    assert names(tmp_path) == ["step-000001"]
    verify(older)


# Disk full


def assert_disk_full_is_clean(trained, directory):
    folder = step_folder(directory, 2)
    with pytest.raises(OSError, match=r"no space to write a checkpoint: about 0\.2 MB needed") as error:
        trained.save(folder, keep_last=1)
    assert error.value.errno == errno.ENOSPC
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for one checkpoint, not for two."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk_loses_nothing(small_disk, trained):
    older = trained.save(step_folder(small_disk, 1))
    assert_disk_full_is_clean(trained, small_disk)
    assert names(small_disk) == ["step-000001"]
    verify(older)
    assert latest(small_disk) == older


@pytest.mark.parametrize("limit", [1_000, 90_000])
def test_file_size_limit_loses_nothing(tmp_path, trained, limit):
    older = trained.save(step_folder(tmp_path, 1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        assert_disk_full_is_clean(trained, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step-000001"]
    verify(older)


# Choosing


def test_latest_is_the_newest_complete_one(tmp_path, trained):
    assert latest(tmp_path / "nowhere") is None
    for step in (9, 10, 100):
        trained.save(step_folder(tmp_path, step))
    (step_folder(tmp_path, 100) / "COMPLETE").unlink()
    step_folder(tmp_path, 200).mkdir()
    (tmp_path / "sft").mkdir()
    (tmp_path / "step-000300").write_text("a file")
    with pytest.warns(UserWarning, match="half-written step-000100, step-000200") as caught:
        assert latest(tmp_path) == step_folder(tmp_path, 10)
    assert len(caught) == 1


def test_keep_last_deletes_only_older_complete_ones(tmp_path, trained):
    for step in (1, 2, 3):
        trained.save(step_folder(tmp_path, step))
    step_folder(tmp_path, 0).mkdir()
    trained.save(step_folder(tmp_path, 5))
    trained.save(step_folder(tmp_path, 4), keep_last=2)
    assert names(tmp_path) == ["step-000000", "step-000003", "step-000004", "step-000005"]
    with pytest.raises(ValueError, match="keep_last=0 must be at least 1"):
        trained.save(step_folder(tmp_path, 6), keep_last=0)


def test_saving_a_step_again_replaces_it(tmp_path, trained):
    folder = trained.save(step_folder(tmp_path, 1))
    other = Run(seed=5)
    other.save(folder)
    assert names(tmp_path) == ["step-000001"]
    again = Run()
    again.load(folder)
    assert again.equals(other)


def test_resolve(tmp_path, trained):
    assert resolve(tmp_path, False) is None
    assert resolve(tmp_path, True) is None
    with pytest.raises(FileNotFoundError, match="holds no complete checkpoint"):
        resolve(tmp_path, "step-000001")
    for step in (1, 2):
        trained.save(step_folder(tmp_path, step))
    step_folder(tmp_path, 3).mkdir()
    assert resolve(tmp_path, False) is None
    assert resolve(tmp_path, "step-000001") == step_folder(tmp_path, 1)
    with pytest.warns(UserWarning, match="step-000003"):
        assert resolve(tmp_path, True) == step_folder(tmp_path, 2)
    for name in ("step-000003", "step-1", "../step-000001"):
        with pytest.raises(FileNotFoundError, match="holds step-000001, step-000002"):
            resolve(tmp_path, name)


def test_going_back_supersedes_what_came_later(tmp_path, trained):
    for step in (1, 2, 3):
        trained.save(step_folder(tmp_path, step))
    renamed = supersede_later(step_folder(tmp_path, 1))
    assert [path.name for path in renamed] == ["superseded-step-000002", "superseded-step-000003"]
    assert latest(tmp_path) == step_folder(tmp_path, 1)
    assert supersede_later(step_folder(tmp_path, 1)) == []


def test_nothing_in_a_checkpoint_is_pickled(tmp_path, trained):
    folder = trained.save(step_folder(tmp_path, 1))
    for file in folder.rglob("*"):
        if file.suffix == ".json" or file.name == "COMPLETE":
            json.loads(file.read_bytes())
        elif file.is_file():
            assert file.suffix == ".safetensors"
