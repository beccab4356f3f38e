"""Methods x seeds: what is run, what is averaged, what goes on."""

import math
import shutil

import numpy as np
import pytest
from rich.console import Console

from sprout.seed.comparison import compare, seed_config
from sprout.seed.config import load_config
from sprout.seed.run_dir import RunDir, read_json
from sprout.seed.stages.compare import method_config
from sprout.seed.statistics import mean_interval

SMALL = ["train.updates=1", "eval.select_tasks=2", "eval.report_tasks=6"]


def test_interval_of_a_mean_is_students():
    # 0.3, 0.4, 0.5: mean 0.4, deviation 0.1, t(2) = 4.303
    found = mean_interval([0.3, 0.4, 0.5])
    half = 4.303 * 0.1 / math.sqrt(3)
    assert found["mean"] == pytest.approx(0.4) and found["ci95"] == pytest.approx([0.4 - half, 0.4 + half])
    assert mean_interval([0.3]) == {"mean": 0.3, "ci95": None}
    values = np.arange(31.0)  # t(30) = 2.042
    half = 2.042 * values.std(ddof=1) / math.sqrt(31)
    assert mean_interval(values.tolist())["ci95"] == pytest.approx([15 - half, 15 + half], rel=1e-3)


def test_every_method_is_measured_after_every_seed_and_more_can_be_added(tmp_path):
    config = load_config("tiny", [*SMALL, f"run.dir={tmp_path}"])
    first = compare(config, ["seed", "grpo"], [0, 1], Console(quiet=True))
    root = tmp_path / "tiny"
    for number, seed in enumerate((0, 1)):
        own = RunDir(root / f"seed-{seed}")
        for row, folder in zip(first["methods"], (own, own.compared("grpo")), strict=True):
            assert row["success"][number] == folder.result("eval")["final"]["success_rate"]
    seed_row, grpo = first["methods"]
    differences = [a - b for a, b in zip(grpo["success"], seed_row["success"], strict=True)]
    assert grpo["lead"] == mean_interval(differences) and seed_row["lead"]["mean"] == 0
    assert grpo["tokens"] > 0 and (root / "comparison.png").is_file()

    stamps = {f: f.stat().st_mtime_ns for f in root.rglob("model.safetensors")}
    more = compare(config, ["seed", "grpo", "static-skill"], [0, 1], Console(quiet=True))
    assert more["methods"][:2] == first["methods"]
    assert {f: f.stat().st_mtime_ns for f in stamps} == stamps  # nothing is trained twice
    written = read_json(root / "comparison.json")
    assert [row["method"] for row in written["methods"]] == ["seed", "grpo", "static-skill"]
    shutil.rmtree(root)


def test_the_recipes_own_method_is_the_run_and_the_first_the_reference(tmp_path):
    config = load_config("tiny", [f"run.dir={tmp_path}"])
    planned = seed_config(config, ["grpo", "seed"], 3)
    assert (planned.objective.name, planned.compare, planned.run.seed) == ("seed", ("grpo",), 3)
    assert planned.objective.lambda_opd == 0.1 and method_config(planned, "grpo").objective.lambda_opd == 0


def test_a_method_cannot_inherit_what_another_method_set(tmp_path):
    config = load_config("tiny", ["objective.name=grpo", f"run.dir={tmp_path}"])
    with pytest.raises(
        ValueError, match=r"compare: seed would keep analyzer\.kind from grpo; make seed the run"
    ):
        compare(config, ["grpo", "seed"], [0], Console(quiet=True))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("methods", "seeds"), [([], [0]), (["seed", "seed"], [0]), (["seed"], []), (["seed"], [1, 1])]
)
def test_each_method_and_seed_is_given_once(tmp_path, methods, seeds):
    config = load_config("tiny", [f"run.dir={tmp_path}"])
    with pytest.raises(ValueError, match="give each once"):
        compare(config, methods, seeds, Console(quiet=True))
