"""What a user types, and what comes back: exit codes, one-line errors, help without heavy imports."""

import os
import signal
import subprocess
import sys
import time

import pytest

from sprout.seed import cli
from sprout.seed.run_dir import read_json

COMMAND = [sys.executable, "-c", "from sprout.seed.cli import main; main()"]


@pytest.fixture
def sprout(capfd):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        code = cli.execute([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_help_is_quick_because_nothing_heavy_is_imported():
    script = (
        "import sys; from sprout.seed import cli; cli.execute(['run', '--help']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'numpy', 'numba')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "dry-run" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nonsuch"], "no recipe 'nonsuch'"),
        (["run", "tiny", "train.updatess=3"], "did you mean train.updates?"),
        (["run", "tiny", "train.updates=many"], "train.updates"),
        (["run", "tiny", "train.updates"], "write section.field=value"),
        (["run", "tiny", "env.name=nonsuch"], "unknown environment 'nonsuch'"),
        (["base", "tiny", "base.heads=3"], "base.hidden_size must be a multiple of twice base.heads"),
        (["train", "tiny"], "run the sft stage first"),
        (["annotate", "tiny", "run.stages=[annotate]", "model.path=/nonsuch"], "/nonsuch does not exist"),
        (["eval", "tiny"], "run the train stage first"),
        (["eval", "tiny", "--panel=test"], "neither select nor report"),
        (["export", "/nonsuch", "/tmp/target"], "/nonsuch does not exist"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(sprout, tmp_path, arguments, words):
    if arguments[0] != "export":
        arguments = [*arguments, f"run.dir={tmp_path}"]
    code, _, err = sprout(*arguments)
    assert code == 2
    assert len(err.splitlines()) == 1 and err.startswith("error: ") and words in err


@pytest.mark.parametrize("arguments", [["nonsuch"], ["run"], ["run", "tiny", "--nonsuch"]])
def test_wrong_usage_exits_with_2(sprout, arguments):
    code, _, err = sprout(*arguments)
    assert code == 2 and err


def test_debug_shows_the_traceback(sprout):
    code, _, err = sprout("run", "nonsuch", "--debug")
    assert code == 2
    assert "Traceback" in err and err.splitlines()[-1].startswith("error: ")


def test_dry_run_prints_configuration_and_plan_and_writes_nothing(sprout, tmp_path):
    code, out, _ = sprout("run", "tiny", "--dry-run", f"run.dir={tmp_path / 'runs'}", "train.updates=7")
    assert code == 0 and not (tmp_path / "runs").exists()
    assert "updates: 7" in out
    for word in ("parameters", "KV cache", "7 updates", "FLOPs", "scored-only rows"):
        assert word in out


PAPER = [f"paper/{env}-{model}" for env in ("alfworld", "webshop", "search")
         for model in ("qwen2.5-3b", "qwen2.5-7b", "qwen3-1.7b")]  # fmt: skip


@pytest.mark.parametrize("recipe", PAPER)
def test_paper_recipes_are_planned_without_weights(sprout, recipe):
    code, out, err = sprout("run", recipe, "--dry-run")
    assert code == 0, err
    for words in ("no weights in", "150 updates", "8 rollouts", "FLOPs", "on each of 8 devices: fits in 80"):
        assert words in out


def test_a_plan_that_does_not_fit_says_so(sprout):
    code, out, _ = sprout("run", PAPER[1], "--dry-run", "machine.gpus=1")
    assert code == 0 and "does NOT fit in 80 GB" in out
    assert "7.62 billion parameters" in out


def test_another_configuration_needs_resume_or_another_name(sprout, tmp_path):
    folder = f"run.dir={tmp_path}"
    assert sprout("base", "tiny", folder, "base.steps=1")[0] == 0
    code, _, err = sprout("base", "tiny", folder, "base.steps=2")
    assert code == 2 and "base.steps = 1, not 2" in err and "--resume" in err
    code, out, _ = sprout("base", "tiny", folder, "base.steps=1")
    assert code == 0 and "done before" in out
    code, out, _ = sprout("base", "tiny", folder, "base.steps=1", "train.lr=0.5", "--resume")
    assert code == 0 and "resuming with another train.lr" in out


def test_an_unfinished_stage_needs_resume(sprout, tmp_path):
    arguments = ["annotate", "tiny", f"run.dir={tmp_path}", "run.stages=[annotate]", "model.path=/nonsuch"]
    assert sprout(*arguments)[0] == 2
    code, _, err = sprout(*arguments)
    assert code == 2 and "unfinished annotate stage" in err and "--resume" in err
    assert "/nonsuch does not exist" in sprout(*arguments, "--resume")[2]


def test_a_folder_of_something_else_is_refused(sprout, tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "thesis.txt").write_text("mine")
    code, _, err = sprout("base", "tiny", f"run.dir={tmp_path}")
    assert code == 2 and "no config.yaml" in err


def test_export_copies_a_model_that_loads(sprout, tiny, tmp_path):
    code, out, _ = sprout("export", tiny.folder.root, tmp_path / "model")
    assert code == 0 and "step-000004" in out
    assert (tmp_path / "model" / "tokenizer.json").is_file()
    code, _, err = sprout("export", tiny.folder.root, tmp_path / "model")
    assert code == 2 and "exists already" in err
    code, _, err = sprout("export", tiny.folder.root, tmp_path / "other", "--checkpoint=step-000003")
    assert code == 2 and "step-000004" in err
    assert sprout("export", tiny.folder.root, tmp_path / "other", "--checkpoint=sft")[0] == 0


def test_eval_prints_json(sprout, tiny):
    where = f"run.dir={tiny.config.run.dir}"
    code, out, _ = sprout("eval", "tiny", where, "--panel=select", f"--model={tiny.folder.stage1_model}")
    assert code == 0 and '"split": "select"' in out and '"tasks": 6' in out


def test_doctor_names_versions_ops_and_environments(sprout):
    code, out, _ = sprout("doctor")
    assert code == 0
    for word in ("torch", "git", "native module", "tree_attention", "household", "tiny"):
        assert word in out


def test_interrupt_says_how_to_go_on(tmp_path):
    command = [*COMMAND, "base", "tiny", f"run.dir={tmp_path}", "base.steps=100000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)
    mark = tmp_path / "tiny" / "base" / "acting" / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while not (mark.is_file() and mark.stat().st_size):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("interrupted; go on with: sprout base tiny")
    assert err.rstrip().endswith("--resume")
    assert read_json(tmp_path / "tiny" / "stages" / "base.json") == {"finished": False}
