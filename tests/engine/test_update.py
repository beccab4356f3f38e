"""Dual forward and policy update against the plain composition over separate, unshared sequences in fp64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import FAMILIES, as_transformers, random_turns, tiny_decoder

from sprout.engine.dual import pair_logprobs
from sprout.engine.forest import Forest, Turn
from sprout.engine.scoring import score_turns
from sprout.engine.update import UpdateSettings, policy_update
from sprout.kernels import PolicyLossCoefficients

EVERYTHING = PolicyLossCoefficients(kl=0.1, entropy=0.01, opd=0.3, beta=2.0)


class KeepGradients:
    """Stands where the optimizer does and leaves the weights alone."""

    def zero_grad(self):
        pass

    def step(self):
        return 0.0


def plain_logprobs(model, context, action):
    """transformers, one sequence, no sharing: log-probs and entropies of the action tokens."""
    ids = torch.from_numpy(np.concatenate([context, action]))
    logits = model(ids[None, :-1]).logits[0, len(context) - 1 :]
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, ids[len(context) :, None])[:, 0], entropy


def plain_loss(model, turns, c):
    """The formulas, token by token over separate sequences."""
    rl_tokens = sum(t.mask.sum() for t in turns)
    opd_tokens = sum(t.mask.sum() for t in turns if t.teacher_context is not None)
    loss = torch.zeros((), dtype=torch.float64)
    for t in turns:
        lp, entropy = plain_logprobs(model, t.context, t.action)
        on = torch.from_numpy(t.mask).double()
        A, old, ref = (torch.from_numpy(x).double() for x in (t.advantage, t.old_logprob, t.ref_logprob))
        ratio = (lp - old).exp()
        pg = torch.maximum(-A * ratio, -A * ratio.clamp(1 - c.clip_low, 1 + c.clip_high))
        pg = torch.where(A < 0, torch.minimum(pg, -A * c.dual_clip), pg)
        k3 = (ref - lp).clamp(-10, 10).exp() - (ref - lp).clamp(-10, 10) - 1
        loss = loss + ((pg + c.kl * k3 - c.entropy * entropy) * on).sum() / rl_tokens
        if t.teacher_context is not None:
            skill = plain_logprobs(model, t.teacher_context, t.action)[0].detach()
            gate = torch.sigmoid(c.beta * (skill - lp.detach()))
            loss = loss + c.opd * (gate * (skill - lp) * on).sum() / max(opd_tokens, 1)
    return loss


def gradients(decoder, turns, **changes):
    options = UpdateSettings(**({"coefficients": EVERYTHING, "rows_per_micro_batch": 10_000} | changes))
    decoder.zero_grad()
    result = policy_update(decoder, KeepGradients(), turns, options)
    return {n: p.grad.clone() for n, p in decoder.named_parameters()}, result


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_loss_gradients_equal_separate_sequences(family, seed):
    turns = random_turns(seed)
    decoder = tiny_decoder(family, dtype=torch.float64, scale=3.0)
    got, _ = gradients(decoder, turns)
    model = as_transformers(decoder)
    plain_loss(model, turns, EVERYTHING).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad, atol=1e-11, rtol=1e-8, msg=name)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_pair_logprobs_equal_separate_sequences(seed):
    turns = random_turns(seed)
    decoder = tiny_decoder(dtype=torch.float64)
    model = as_transformers(decoder)
    pair = pair_logprobs(decoder, Forest.pack(turns), with_entropy=True)
    expected = [plain_logprobs(model, t.context, t.action) for t in turns]
    torch.testing.assert_close(pair.student.double(), torch.cat([e[0] for e in expected]), atol=1e-12, rtol=0)
    torch.testing.assert_close(pair.entropy.double(), torch.cat([e[1] for e in expected]), atol=1e-12, rtol=0)
    nothing = [torch.full((len(t.action),), torch.nan, dtype=torch.float64) for t in turns]
    teacher = torch.cat(
        [
            plain_logprobs(model, t.teacher_context, t.action)[0] if t.teacher_context is not None else n
            for t, n in zip(turns, nothing, strict=True)
        ]
    )
    if pair.teacher is not None:
        torch.testing.assert_close(pair.teacher.double(), teacher, atol=1e-12, rtol=0, equal_nan=True)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(0, 60))
def test_gradient_does_not_depend_on_the_micro_batch_split(seed, rows):
    turns = random_turns(seed, count=8)
    decoder = tiny_decoder(dtype=torch.float64)
    whole, _ = gradients(decoder, turns)
    largest = max(len(t.context) + 2 * len(t.action) + _length(t.teacher_context) for t in turns)
    parts, _ = gradients(decoder, turns, rows_per_micro_batch=largest + rows)
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], atol=1e-11, rtol=1e-8, msg=name)


def _length(ids):
    return 0 if ids is None else len(ids)


def test_gradients_are_the_same_bits_with_teacher_branches_when_lambda_is_zero():
    turns = random_turns(3, count=8)
    decoder = tiny_decoder()
    off = replace(EVERYTHING, opd=0.0)
    present, _ = gradients(decoder, turns, coefficients=off)
    absent, _ = gradients(decoder, [replace(t, teacher_context=None) for t in turns], coefficients=off)
    assert all(torch.equal(present[n], absent[n]) for n in present)


def test_null_skill_has_delta_zero_and_gate_one_half():
    turns = [replace(t, teacher_context=t.context.copy()) for t in random_turns(1)]
    _, result = gradients(tiny_decoder(), turns)
    for scores in result.scores:
        assert (scores.delta == 0).all() and (scores.gate == 0.5).all()


def test_beta_zero_is_a_constant_gate():
    _, result = gradients(tiny_decoder(), random_turns(1), coefficients=replace(EVERYTHING, beta=0.0))
    assert all((s.gate == 0.5).all() for s in result.scores if s.gate is not None)


def test_snapshot_equals_live_with_one_step():
    turns = [replace(t, old_logprob=None) for t in random_turns(5)]
    live, _ = gradients(tiny_decoder(dtype=torch.float64), turns, teacher_policy="live")
    turns = [
        replace(t, teacher_context=None, skill_logprob=skill)
        for t, (_, skill) in zip(
            turns,
            score_turns(
                tiny_decoder(dtype=torch.float64), turns, temperature=1.0, rows_per_micro_batch=10_000
            ),
            strict=True,
        )
    ]
    snapshot, _ = gradients(tiny_decoder(dtype=torch.float64), turns)
    for name in live:
        torch.testing.assert_close(snapshot[name], live[name], atol=1e-6, rtol=1e-4)


def test_everything_masked_is_an_exact_zero_with_a_gradient():
    turns = [replace(t, mask=np.zeros_like(t.mask)) for t in random_turns(2)]
    got, result = gradients(tiny_decoder(), turns)
    assert all((g == 0).all() for g in got.values())
    assert result.metrics["actor/pg_loss"] == 0


def test_masked_garbage_never_reaches_the_gradient():
    clean = random_turns(4)
    dirty = []
    for t in clean:
        values = {}
        for name in ("old_logprob", "ref_logprob", "advantage"):
            x = getattr(t, name).copy()
            x[t.mask == 0] = np.nan
            values[name] = x
        dirty.append(replace(t, **values))
    expected, _ = gradients(tiny_decoder(), clean)
    got, _ = gradients(tiny_decoder(), dirty)
    assert all(torch.equal(got[n], expected[n]) for n in got)


@pytest.mark.parametrize("aggregation", ["token_mean_global", "token_mean_microbatch", "sequence_mean"])
def test_aggregations(aggregation):
    a = Turn(np.array([1, 2]), np.array([3]), mask=np.ones(1, np.float32), advantage=np.ones(1, np.float32))
    b = Turn(
        np.array([4, 5]), np.array([6, 7, 8]), mask=np.ones(3, np.float32), advantage=-np.ones(3, np.float32)
    )
    coefficients = PolicyLossCoefficients()
    _, result = gradients(tiny_decoder(), [a, b], coefficients=coefficients, loss_aggregation=aggregation)
    # On-policy the per-token loss is -A: token means weigh b three times, the sequence mean weighs both once.
    expected = 0.0 if aggregation == "sequence_mean" else (-1 + 3) / 4
    assert result.metrics["actor/pg_loss"] == pytest.approx(expected, abs=1e-6)


def test_a_field_missing_in_some_turns_is_named():
    turns = random_turns(1)
    turns[0] = replace(turns[0], old_logprob=None)
    with pytest.raises(ValueError, match="1 of 6 turns lack old_logprob"):
        gradients(tiny_decoder(), turns)


def test_optimizer_steps_see_every_turn_once():
    turns = random_turns(6, count=7)
    _, result = gradients(tiny_decoder(), turns, optimizer_steps=3, teacher_policy="live")
    assert all(s is not None for s in result.scores)
