"""Ours and transformers play the same greedy episodes."""

import numpy as np
import pytest
import torch
from tiny import tiny_decoder

from sprout.bench import generate
from sprout.bench.episodes import Episodes, EpisodeShape
from sprout.bench.generate import OURS, PEER_CACHED, check_greedy, make_providers, measure_generate

SHAPE = EpisodeShape(groups=2, members=3, prompt=21, turns=3, observation=5, action=4)


def test_greedy_episodes_of_all_providers_agree_and_keep_what_was_given():
    decoder = tiny_decoder()
    providers = make_providers(decoder, SHAPE)
    check_greedy(providers)
    episodes = Episodes.random(SHAPE, decoder.config.vocab_size)
    ids = providers[OURS](0.0)
    assert ids.shape == (6, SHAPE.length)
    assert (ids[:, :21] == episodes.prompt).all()
    assert (ids[:, 25:30] == episodes.observation[:, 0]).all()
    assert len(np.unique(providers[OURS](1.0), axis=0)) == 6


def test_a_provider_that_differs_is_named():
    other = {OURS: lambda _: np.zeros((4, 3)), "peer": lambda _: np.ones((4, 3))}
    with pytest.raises(AssertionError, match="peer: only 0% of the greedy episodes"):
        check_greedy(other)


def test_tokens_per_second_count_sampled_tokens():
    result = measure_generate(tiny_decoder(), SHAPE, rounds=1)
    rows = {row["provider"]: row for row in result.rows("multi-turn")}
    assert rows[OURS]["sampled_tokens"] == 2 * 3 * 3 * 4
    assert rows[PEER_CACHED]["tokens_per_s"] == pytest.approx(72 / rows[PEER_CACHED]["median_s"])


def test_half_precision_on_a_cpu_without_units_for_it_has_float32_peers(monkeypatch):
    monkeypatch.setattr(generate, "multiplies", lambda dtype: dtype == torch.float32)
    speedups = measure_generate(tiny_decoder().to(torch.bfloat16), SHAPE, rounds=1).speedups("_small")
    peers = ("", "_float32", "_cache_kept", "_cache_kept_float32")
    assert set(speedups) == {f"speedup_vs_hf{peer}_small" for peer in peers}
    assert min(speedups.values()) > 0
