"""Induction heads in fresh weights, seen through the attention that transformers' own model computes."""

import numpy as np
import pytest
import torch
from tiny import as_transformers, tiny_config

from sprout.engine.induction import initialize_induction
from sprout.engine.model import Decoder

SHAPES = [dict(heads=8, kv_heads=4), dict(heads=4, kv_heads=4), dict(heads=8, kv_heads=8)]
WIDE = dict(hidden_size=128, vocab=400, rope_theta=1e6)
FAR = 100


def fresh(seed=3, **shape):
    sizes = WIDE | shape
    config = tiny_config(**sizes, head_dim=sizes["hidden_size"] // sizes["heads"])
    return initialize_induction(Decoder(config).initialize(0), seed)


def attention(decoder, ids):
    """[layers, heads, queries, keys]"""
    model = as_transformers(decoder)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return torch.cat(model(torch.from_numpy(ids[None]), output_attentions=True).attentions)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_first_layer_reads_fixed_distances(shape):
    ids = np.random.default_rng(0).integers(0, 400, FAR)
    first = attention(fresh(**shape), ids)[0]
    group = shape["heads"] // shape["kv_heads"]
    for head in range(4 * group):
        assert first[head].diagonal(-(head // group + 1))[8:].min() > 0.9


@pytest.mark.parametrize("shape", [*SHAPES, dict(heads=4, kv_heads=2, hidden_size=64)], ids=str)
def test_what_followed_once_is_expected_again(shape):
    told = np.random.default_rng(1).permutation(400)[:FAR]
    ids = np.concatenate([told, told[20:60]])
    with torch.no_grad():
        logits = as_transformers(fresh(**shape))(torch.from_numpy(ids[None])).logits[0, FAR + 4 : -1]
    expected = logits.gather(1, torch.from_numpy(ids[FAR + 5 :, None]))
    rank = (logits > expected).sum(1)
    assert rank.median() < 20  # of 400 tokens; by chance 200


def test_a_seed_gives_the_same_weights():
    a, b, other = (fresh(seed, heads=8, kv_heads=4).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], other[name]) for name in a)


@pytest.mark.parametrize("config", [dict(layers=1), dict(family="qwen3")], ids=str)
def test_a_model_without_the_parts_is_refused(config):
    with pytest.raises(ValueError, match="two layers, and biases"):
        initialize_induction(Decoder(tiny_config(**config)), 0)
