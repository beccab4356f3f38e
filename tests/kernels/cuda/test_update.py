"""A whole update and a whole generation on a GPU equal those on the CPU."""

import numpy as np
import pytest
import torch
from tiny import random_turns, tiny_decoder

from sprout.bench.episodes import Episodes, EpisodeShape
from sprout.bench.generate import play_ours
from sprout.bench.pair import GradientsOnly
from sprout.engine.generator import Generator
from sprout.engine.optimizer import OptimizerConfig, build_optimizer
from sprout.engine.update import UpdateSettings, policy_update
from sprout.kernels import PolicyLossCoefficients

SETTINGS = UpdateSettings(PolicyLossCoefficients(kl=0.1, entropy=0.01, opd=0.5))


def gradients(device, dtype):
    decoder = tiny_decoder(scale=3.0).to(device, dtype)
    result = policy_update(decoder, GradientsOnly(decoder), random_turns(0), SETTINGS)
    grads = {name: p.grad.cpu().double() for name, p in decoder.named_parameters()}
    return grads, result


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.1)], ids=["float32", "bfloat16"]
)
def test_gradient_equals_that_of_the_cpu(device, dtype, tolerance):
    exact, expected = gradients("cpu", torch.float64)
    ours, result = gradients(device, dtype)
    for name, grad in ours.items():
        error = float((grad - exact[name]).abs().max() / exact[name].abs().max())
        assert error < tolerance, f"gradient of {name} differs by {error:.1e}"
    for mine, theirs in zip(result.scores, expected.scores, strict=True):
        np.testing.assert_allclose(mine.logprob, theirs.logprob, rtol=tolerance, atol=10 * tolerance)


def test_updates_repeat_bit_by_bit(device):
    def weights():
        decoder = tiny_decoder().to(device, torch.bfloat16)
        optimizer = build_optimizer(decoder, OptimizerConfig(lr=1e-3))
        for seed in range(3):
            result = policy_update(decoder, optimizer, random_turns(seed), SETTINGS)
            assert result.metrics["actor/skipped_steps"] == 0
        return [slot.master for slot in optimizer.slots]

    assert all(torch.equal(x, y) for x, y in zip(weights(), weights(), strict=True))


def test_greedy_episodes_equal_those_of_the_cpu(device):
    shape = EpisodeShape(groups=2, members=3, prompt=21, turns=3, observation=5, action=4)
    played = []
    for where in (torch.device("cpu"), device):
        decoder = tiny_decoder().to(where)
        episodes = Episodes.random(shape, decoder.config.vocab_size)
        generator = Generator(decoder, stop_id=[], cache_tokens=shape.episodes * (shape.length + 32))
        played.append(play_ours(generator, episodes, 0.0))
    assert (played[0] == played[1]).all()
