"""Ours and transformers' two passes give the same log-probs, and the summary names what it measured."""

import pytest
import torch
from tiny import tiny_decoder

from sprout.bench.rescore import OURS, check_scores, make_scorers, measure_rescore
from sprout.bench.workload import PairShape

SHAPE = PairShape(trajectories=2, prompt=12, turns=3, observation=5, action=4, skill=3)


def test_scores_of_all_providers_agree():
    _, scorers = make_scorers(tiny_decoder(scale=3.0), SHAPE, [1, 4])
    check_scores(scorers, 1e-4)
    student, teacher = scorers[OURS]()
    assert (student - teacher).abs().max() > 1e-3


def test_a_wrong_score_is_named():
    _, scorers = make_scorers(tiny_decoder(scale=3.0), SHAPE, [1])
    good = scorers[OURS]
    wrong = {**scorers, OURS: lambda: (good()[0], good()[1] + torch.eye(24)[0])}
    with pytest.raises(AssertionError, match=r"batch 1: l_skill differs by 1\.0e"):
        check_scores(wrong, 1e-4)


def test_summary():
    summary = measure_rescore(tiny_decoder(), SHAPE, rounds=1).summary()
    assert summary["speedup_vs_hf_two_pass"] > 0 and summary["pair_tokens_per_s"] > 0
    assert summary["reuse_ratio"] > 1.5 and summary["predicted_vs_hf_two_pass"] > 1
