"""The reference model of the KL term: kept in CPU memory or not, it gives the same numbers."""

import numpy as np
import pytest
import torch
from tiny import random_turns, tiny_decoder

from sprout.engine.reference import Reference
from sprout.engine.scoring import score_turns

HOW = {"temperature": 0.7, "rows_per_micro_batch": 300}
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")),
]


def where(decoder):
    """The devices that hold its weights."""
    return {parameter.device.type for parameter in decoder.parameters()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("offload", [False, True])
def test_a_reference_scores_students_as_its_decoder_does(device, offload):
    decoder = tiny_decoder("qwen2").float().to(device)
    turns = random_turns(0, count=7)
    expected = [student for student, _ in score_turns(decoder, turns, **HOW)]
    reference = Reference(decoder, offload)
    for _ in range(2):
        assert where(decoder) == {"cpu" if offload else device}
        for turn, scored, own in zip(turns, reference.score(turns, **HOW), expected, strict=True):
            assert np.array_equal(scored.ref_logprob, own)
            assert scored.teacher_context is turn.teacher_context and scored.action is turn.action


@pytest.mark.parametrize("device", DEVICES)
def test_offloaded_weights_are_on_the_device_inside_the_block_alone(device):
    decoder = tiny_decoder("qwen2").to(device)
    before = {name: weight.clone().cpu() for name, weight in decoder.state_dict().items()}
    reference = Reference(decoder, offload=True)
    assert where(decoder) == {"cpu"}
    with pytest.raises(RuntimeError, match="gone wrong"), reference.on_device() as ready:
        assert ready is decoder and where(decoder) == {device}
        raise RuntimeError("gone wrong")
    assert where(decoder) == {"cpu"}
    after = decoder.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
