"""The decoder against transformers' own models on random small configs."""

import numpy as np
import pytest
import torch
from tiny import FAMILIES, as_transformers, random_turns, tiny_config, tiny_decoder

from sprout.engine.forest import Forest, Turn
from sprout.engine.model import ModelConfig

SHAPES = [dict(heads=4, kv_heads=2), dict(heads=3, kv_heads=1), dict(heads=5, kv_heads=5)]


def logits_of(decoder, ids):
    forest = Forest.pack([Turn(ids[:1], ids[1:])])
    hidden, _ = decoder(forest)
    return hidden @ decoder.head_weight.T


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_logits_equal_transformers(family, tied, shape):
    decoder = tiny_decoder(family, tied=tied, **shape)
    ids = np.random.default_rng(0).integers(0, 50, 65)
    expected = as_transformers(decoder)(torch.from_numpy(ids[None, :-1])).logits[0]
    torch.testing.assert_close(logits_of(decoder, ids), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda r: r["rope_type"],
)
def test_scaled_rope_equals_transformers(rope):
    decoder = tiny_decoder("llama", rope_parameters=rope | {"rope_theta": 10_000.0})
    ids = np.random.default_rng(0).integers(0, 50, 100)
    expected = as_transformers(decoder)(torch.from_numpy(ids[None, :-1])).logits[0]
    torch.testing.assert_close(logits_of(decoder, ids), expected, atol=1e-4, rtol=1e-4)


def test_recomputation_gives_the_same_gradient():
    ids = np.random.default_rng(0).integers(0, 50, 40)
    gradients = []
    for recompute in (False, True):
        decoder = tiny_decoder()
        decoder.recompute = recompute
        logits_of(decoder, ids).square().sum().backward()
        gradients.append([p.grad for p in decoder.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_unknown_architecture_is_named():
    with pytest.raises(ValueError, match=r"gpt2.*qwen2, qwen3, llama"):
        ModelConfig.from_hf({"model_type": "gpt2"})


def test_too_long_a_context_names_the_limit():
    ids = np.zeros(600, np.int64)
    with pytest.raises(ValueError, match="max_position_embeddings=512"):
        logits_of(tiny_decoder(), ids)


def test_config_keeps_the_transformers_fields():
    assert tiny_config("qwen3").hf["model_type"] == "qwen3"


def test_only_read_rows_go_on_after_the_attention_of_the_last_layer():
    decoder, forest = tiny_decoder(), Forest.pack(random_turns(0))
    rows = {layer: [] for layer in decoder.model.layers}
    for layer, seen in rows.items():
        layer.mlp.register_forward_hook(lambda mlp, inputs, out, seen=seen: seen.append(len(out)))
    trained, scored = decoder(forest)
    read = [forest.trained_read, len(forest.read) - forest.trained_read]
    assert list(rows.values()) == [[forest.trained, forest.rows - forest.trained], read]
    assert [len(trained), len(scored)] == read
    assert 0 < read[0] < forest.trained and 0 < read[1] < forest.rows - forest.trained
