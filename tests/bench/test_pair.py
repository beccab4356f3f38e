"""Ours and transformers compute the same gradient, and the table says what each one computes."""

import csv
import json

import pytest
import torch
from tiny import tiny_decoder

from sprout.bench.cli import _report
from sprout.bench.measure import machine
from sprout.bench.models import build_decoder
from sprout.bench.pair import OURS, WHOLE, check_gradients, make_providers, measure_pair
from sprout.bench.workload import PairShape, make_trajectories
from sprout.engine.flops import pair_flops
from sprout.engine.forest import Forest

SHAPE = PairShape(trajectories=3, prompt=20, turns=3, observation=7, action=4, skill=5)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_gradients_of_all_providers_agree(batch_size):
    providers = make_providers(tiny_decoder(scale=3.0), SHAPE, [batch_size])
    check_gradients(list(providers.values()), 1e-3)


def test_a_wrong_gradient_is_named():
    providers = make_providers(tiny_decoder(scale=3.0), SHAPE, [2])
    with torch.no_grad():
        providers[WHOLE].model.model.layers[0].mlp.up_proj.weight[0, 0] += 0.5
    with pytest.raises(AssertionError, match=r"transformers.*gradient of model\.\S+ differs"):
        check_gradients(list(providers.values()), 1e-3)


def test_canonical_shape_saves_what_the_forest_predicts():
    decoder = build_decoder("quickstart", torch.device("cpu"))
    turns = [t for x in make_trajectories(PairShape(), decoder.config.vocab_size) for t in x.turns]
    forest = Forest.pack(turns)
    assert (forest.trained, forest.rows - forest.trained) == (2364, 2784)
    assert pair_flops(decoder.config, forest).saving > 5.5


def test_result_has_a_row_per_provider_and_the_promised_summary(tmp_path, capsys):
    result = measure_pair(tiny_decoder(), SHAPE, rounds=2, batch_sizes=[1, 3])
    rows = {row["provider"]: row for row in result.rows()}
    assert len(rows) == 4 and rows[OURS]["speedup"] == rows[OURS]["predicted"] == 1.0
    assert rows[WHOLE]["trained_rows"] < rows[result.per_turn]["trained_rows"]
    _report(
        "pair", result.rows(), result.summary(), machine(torch.device("cpu")), True, tmp_path / "pair.csv"
    )
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {
        "speedup_vs_per_turn",
        "predicted_vs_per_turn",
        "speedup_vs_whole_trajectory",
        "predicted_vs_whole_trajectory",
        "efficiency",
        "peak_mb",
        "peak_mb_per_turn",
    } <= set(last)
    with (tmp_path / "pair.csv").open() as file:
        written = {row["provider"]: row for row in csv.DictReader(file)}
    assert {name: float(row["median_s"]) for name, row in written.items()} == {
        name: row["median_s"] for name, row in rows.items()
    }
    assert all(row["torch"] == torch.__version__ for row in written.values())


def test_unknown_model_is_named():
    with pytest.raises(FileNotFoundError, match="--model nowhere: neither one of small, quickstart, 135m"):
        build_decoder("nowhere", torch.device("cpu"))
