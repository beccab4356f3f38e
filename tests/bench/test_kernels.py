"""Every op's cases run at tiny sizes, their providers agree, and whatever does not run says why."""

import csv
import json
import math
from itertools import zip_longest

import pytest
import torch
from typer.testing import CliRunner

from sprout.bench.case import (
    EAGER,
    Case,
    Program,
    Setting,
    UnavailableError,
    Work,
    library,
    plain,
    tensors_of,
)
from sprout.bench.cli import bench_app
from sprout.bench.kernels import Sweep, measure_case, measure_kernels
from sprout.bench.ops import CASES, attention
from sprout.bench.ops.trees import canonical, causal, group
from sprout.bench.workload import PairShape
from sprout.kernels.dispatch import OPS

CPU = torch.device("cpu")
QUICK = Setting(CPU, torch.float32, "quick", compile=False)
TINY = PairShape(trajectories=2, prompt=5, turns=3, observation=4, action=3, skill=2)


def test_every_op_has_cases():
    assert set(CASES) == set(OPS)


@pytest.mark.parametrize("op", CASES)
def test_every_provider_is_measured_or_says_why(op):
    (sweep,) = measure_kernels(QUICK, [op], rounds=1)
    for case in CASES[op](QUICK):
        ran = {(r.provider, r.phase) for r in sweep.results if r.case.shape == case.shape}
        absent = {f.provider for f in sweep.failures if f.case.shape == case.shape}
        assert {name for name, _ in ran} | absent == set(case.providers)
        assert {("sprout torch", phase) for phase in case.work} <= ran
        assert {(case.baseline, phase) for phase in case.work} <= ran
    assert all(f.why and not f.is_error for f in sweep.failures)
    for result in sweep.results:
        assert result.timing.median > 0 and result.of_ceiling > 0
        assert result.provider != result.case.baseline or result.vs_baseline == 1
        assert math.isnan(result.peak_mb) == (result.phase == "backward")


@pytest.mark.parametrize("op", sorted(set(CASES) - {"tree_attention", "sample", "adamw_"}))
def test_providers_agree(op):
    for case in CASES[op](QUICK):
        expected = outputs(case.providers["sprout torch"]())
        for name, make in case.providers.items():
            try:
                program = make()
            except UnavailableError:
                continue
            for x, y in zip_longest(outputs(program), expected):
                if x.shape != y.shape:  # heads first
                    x = x[0].transpose(0, 1)
                torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4, msg=f"{name} differs")


def outputs(program):
    return [x.detach() for x in tensors_of(program.function(*program.inputs))]


@pytest.mark.parametrize(
    "tree", [causal(9, CPU), group(6, 3, 4, CPU), canonical(TINY, CPU), canonical(TINY, CPU, teachers=True)]
)
def test_unrolled_sequences_are_the_paths_of_the_tree(tree):
    visible = tree.intervals.visible()
    assert tree.visible_pairs == visible.sum()
    leaves = set()
    for batch in tree.unrolled:
        for path in batch.tolist():
            assert visible[path[-1]].nonzero().squeeze(1).tolist() == sorted(path)
            leaves.add(path[-1])
    ancestors = visible.sum(0) > 1
    assert set((~ancestors).nonzero().squeeze(1).tolist()) <= leaves


def test_canonical_trees_have_the_rows_of_the_workload():
    tree = canonical(PairShape(), CPU)
    assert (tree.rows, sum(len(x) for x in tree.unrolled)) == (2364, 32)


def test_unrolled_attention_equals_tree_attention():
    tree = canonical(TINY, CPU)
    case = attention.case(QUICK, tree, 4, 2, 16)
    (ours,) = outputs(case.providers["sprout torch"]())
    (masked,) = outputs(case.providers["torch SDPA, dense mask"]())
    torch.testing.assert_close(masked[0].transpose(0, 1), ours, rtol=1e-4, atol=1e-5)
    for rows, batch in zip(tree.unrolled, outputs(case.providers[attention.SDPA]()), strict=True):
        torch.testing.assert_close(batch.transpose(1, 2), ours[rows], rtol=1e-4, atol=1e-5)


def test_gradients_flow_to_the_inputs_that_require_them():
    x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    program = Program(lambda x, y: (x * y, None), (x, y))
    product, gradient = program.prepare("full")()
    assert torch.equal(product, y) and torch.equal(gradient, 2 * program._upstream[0])
    backward = program.prepare("backward")
    assert torch.equal(backward()[0], gradient) and torch.equal(backward()[0], gradient)
    assert not program.prepare("forward")()[0].requires_grad


def failing(error):
    def make():
        raise error

    return make


def test_what_fails_is_noted_and_the_rest_is_measured():
    def broken(x):
        raise RuntimeError("no kernel image\nand a long story")

    x = torch.ones(4)
    case = Case(
        op="swiglu",
        shape={"rows": 1},
        dtype=x.dtype,
        work={"forward": Work(1, 16, "bytes 16")},
        providers={
            EAGER: plain(torch.neg, x),
            "absent": lambda: library("no_such_library"),
            "unfit": failing(UnavailableError("odd sizes only")),
            "broken": plain(broken, x),
        },
    )
    sweep = Sweep()
    measure_case(case, QUICK, 1, sweep)
    assert [r.provider for r in sweep.results] == [EAGER]
    why = {f.provider: (f.phase, f.why, f.is_error) for f in sweep.failures}
    assert why["absent"][1].startswith("cannot import no_such_library: No module")
    assert why["unfit"] == (None, "odd sizes only", False)
    assert why["broken"] == ("forward", "no kernel image", True)
    notes = {row["provider"]: row["note"] for row in sweep.rows()}
    assert notes[EAGER] == "" and notes["unfit"] == "odd sizes only"


def test_command_writes_table_pictures_and_one_line_of_json(tmp_path):
    command = ["kernels", "--quick", "--rounds", "1", "--op", "swiglu", "--op", "sample", "--json"]
    result = CliRunner().invoke(bench_app, [*command, "--out", str(tmp_path)], catch_exceptions=False)
    last = json.loads(result.stdout.splitlines()[-1])
    assert last["swiglu_full_vs_baseline"] > 0 and last["sample_forward_of_ceiling"] > 0
    assert last["errors_of_ours"] == 0
    with (tmp_path / "kernels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["op"] for row in rows} == {"swiglu", "sample"}
    assert all(float(row["median_ms"]) > 0 if row["note"] == "" else row["median_ms"] == "" for row in rows)
    for name in ("swiglu.png", "sample.png", "roofline.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    report = (tmp_path / "kernels.md").read_text()
    assert "| sprout torch |" in report and "Did not run: liger-kernel: needs a CUDA device" in report


def test_unknown_names_are_errors():
    for option, value in (("--op", "softmax"), ("--dtype", "int8"), ("--device", "cuda:9")):
        with pytest.raises(ValueError, match=f"{option} {value}"):
            CliRunner().invoke(bench_app, ["kernels", option, value], catch_exceptions=False)
