"""The base stage: its phases, and what its fresh weights hold."""

import torch

from sprout.engine.model import Decoder
from sprout.seed.config import load_config
from sprout.seed.envs.household.vocabulary import household_tokenizer
from sprout.seed.stages.base import compose_names, model_config, phases


def test_phases_follow_the_settings():
    config = load_config("base", ["base.recall_steps=3", "base.reports_per_step=7"])
    recall, acting, reading = phases(config)
    assert recall.steps == 3 and recall.sizes["episodes"] == recall.sizes["transcripts"] == 0
    assert acting.sizes["reports"] == reading.sizes["reports"] == 7
    assert len({phase.seed for phase in (recall, acting, reading)}) == 3
    assert reading.lr_factor < acting.lr_factor == recall.lr_factor


def test_a_name_starts_as_its_words():
    ids = household_tokenizer().get_vocab()
    config = load_config("base")
    plain, composed = (Decoder(model_config(config.base, len(ids))).initialize(0) for _ in range(2))
    compose_names(composed, ids)
    before, after = (decoder.model.embed_tokens.weight.data for decoder in (plain, composed))
    for name, words in (("mug 1", ("mug", "1")), ("cabinet 2", ("cabinet", "2"))):
        expected = sum(before[ids[word]] for word in words) / 2**0.5
        torch.testing.assert_close(after[ids[name]], expected)
    single = [index for token, index in ids.items() if len(token.split()) == 1]
    assert torch.equal(before[single], after[single])
    assert abs(after.std() / before.std() - 1) < 0.05
