"""Advantages shaped by Delta: hand-worked values, and their way through an update."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import random_turns, tiny_decoder

from sprout.engine.scoring import score_turns
from sprout.engine.shaping import AdvantageShaping
from sprout.engine.update import UpdateSettings, policy_update
from sprout.kernels import PolicyLossCoefficients


class KeepGradients:
    def zero_grad(self):
        pass

    def step(self):
        return 0.0


def test_opid_adds_delta():
    shaped = AdvantageShaping(additive=0.5)(torch.tensor([1.0, -2.0, 0.0]), torch.tensor([0.4, 0.4, -1.0]))
    assert shaped.tolist() == pytest.approx([1.2, -1.8, -0.5])


def test_rlsd_scales_towards_what_the_teacher_prefers_within_bounds():
    advantage, delta = torch.tensor([2.0, 2.0, -1.0, -1.0, 2.0]), torch.tensor([0.1, 3.0, 0.1, -3.0, -3.0])
    shaped = AdvantageShaping(multiplicative=0.5)(advantage, delta)
    expected = [2 * (0.5 + 0.5 * math.exp(0.1)), 2 * 1.1, -(0.5 + 0.5 * math.exp(-0.1)), -1.1, 2 * 0.9]
    assert shaped.tolist() == pytest.approx(expected)


def test_nothing_is_shaped_by_default_or_without_a_teacher():
    advantage = torch.tensor([1.5, -0.5])
    assert not AdvantageShaping().looks_at_teacher
    assert torch.equal(AdvantageShaping(0.3, 0.4)(advantage, torch.zeros(2)), advantage)


@pytest.mark.parametrize("steps", [1, 2])
def test_an_update_shapes_with_delta_of_the_policy_before_it(steps):
    """The same gradient as plain GRPO on advantages shaped by hand from snapshot scores."""
    shaping = AdvantageShaping(additive=0.2, multiplicative=0.5)
    turns = [replace(turn, ref_logprob=None) for turn in random_turns(5, count=8)]
    decoder = tiny_decoder(dtype=torch.float64)
    scores = score_turns(decoder, turns, temperature=1.0, rows_per_micro_batch=10_000)
    turns = [replace(turn, old_logprob=student) for turn, (student, _) in zip(turns, scores, strict=True)]
    by_hand = []
    for turn, (student, skill) in zip(turns, scores, strict=True):
        delta = np.zeros_like(student) if skill is None else np.where(turn.mask > 0, skill - student, 0)
        shaped = shaping(torch.from_numpy(turn.advantage), torch.from_numpy(delta)).numpy()
        by_hand.append(replace(turn, advantage=shaped.astype(np.float32), teacher_context=None))
    common = dict(coefficients=PolicyLossCoefficients(), rows_per_micro_batch=10_000, optimizer_steps=steps)
    got, scores = gradients(decoder, turns, UpdateSettings(**common, shaping=shaping))
    for score, turn in zip(scores, by_hand, strict=True):
        np.testing.assert_allclose(score.advantage, turn.advantage, atol=1e-5)
    expected, _ = gradients(decoder, by_hand, UpdateSettings(**common))
    for name in got:
        torch.testing.assert_close(got[name], expected[name], atol=1e-6, rtol=1e-5, msg=name)
    plain, _ = gradients(decoder, turns, UpdateSettings(**common))
    assert any(not torch.allclose(got[name], plain[name], rtol=1e-2) for name in got)


def gradients(decoder, turns, options):
    decoder.zero_grad()
    result = policy_update(decoder, KeepGradients(), turns, options)
    return {name: p.grad.clone() for name, p in decoder.named_parameters()}, result.scores
