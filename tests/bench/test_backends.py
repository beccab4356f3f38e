"""Ours on a named backend, and on all of them side by side."""

import pytest
import torch
from tiny import tiny_decoder

from sprout.bench import backends
from sprout.bench.episodes import EpisodeShape
from sprout.bench.generate import OURS as PLAYER
from sprout.bench.generate import measure_generate
from sprout.bench.pair import OURS, measure_pair
from sprout.bench.workload import PairShape
from sprout.kernels.dispatch import OPS, resolve

CPU = torch.device("cpu")
SHAPE = PairShape(trajectories=2, prompt=12, turns=2, observation=5, action=3, skill=4)


def test_ops_run_on_the_backend_named():
    run = backends.on_backend("torch", lambda: resolve("rms_norm", torch.ones(1)), CPU, torch.float32)
    assert run().__module__ == "sprout.kernels.rms_norm.torch"


def test_unknown_and_unfit_backends_are_named():
    with pytest.raises(ValueError, match="--backend cuda: not one of triton, native, torch, reference"):
        backends.choices("cuda", CPU, torch.float32)
    with pytest.raises(ValueError, match="--backend triton has no op for cpu"):
        backends.choices("triton", CPU, torch.float32)


def test_reference_has_every_op_and_all_leaves_out_the_default():
    assert set(backends.choices("reference", CPU, torch.float32)) == set(OPS)
    assert backends.others(CPU, torch.float32) == ["torch", "reference"]


def test_pair_on_all_backends_keeps_its_keys_and_adds_theirs():
    result = measure_pair(tiny_decoder(), SHAPE, rounds=1, batch_sizes=[2], backend=backends.ALL)
    summary = result.summary()
    assert {"speedup_vs_per_turn", "median_s", "median_s_torch", "median_s_reference"} <= set(summary)
    assert [row["provider"] for row in result.rows()][:3] == [OURS, f"{OURS}, torch", f"{OURS}, reference"]


def test_generate_on_all_backends():
    shape = EpisodeShape(groups=1, members=2, prompt=9, turns=2, observation=3, action=2)
    result = measure_generate(tiny_decoder(), shape, rounds=1, backend=backends.ALL)
    assert set(result.by_backend("_x")) == {"tokens_per_s_x_torch", "tokens_per_s_x_reference"}
    assert result.tokens_per_s(PLAYER) > 0
