import math
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout.kernels import PolicyLossCoefficients, PolicyLossTerms, policy_loss, use_backend

EVERYTHING = PolicyLossCoefficients(kl=0.3, entropy=0.1, opd=0.7, beta=2.0, opd_center=0.1, skill_kl=0.2)
SETTINGS = {
    "grpo": PolicyLossCoefficients(),
    "seed": PolicyLossCoefficients(kl=0.01, entropy=0.001, opd=0.01),
    "everything": EVERYTHING,
}


@pytest.fixture(params=["reference", "torch", "triton"])
def backend(request):
    if request.param == "triton":
        request.getfixturevalue("interpreter")
    return request.param


def widest(backend):
    """The most precise dtype a backend takes."""
    return torch.float32 if backend == "triton" else torch.float64


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tokens(M, seed=0, spread=0.5):
    """Every tensor of M tokens, a third of them with weight 0."""
    logprob = -random(M, seed=seed).abs()
    around = [logprob + spread * random(M, seed=seed + i) for i in (1, 2, 3)]
    weight, opd_weight = (random(M, seed=seed + i).clamp(min=-0.4).add(0.4) / M for i in (4, 5))
    names = (
        "logprob",
        "old_logprob",
        "ref_logprob",
        "skill_logprob",
        "advantage",
        "weight",
        "opd_weight",
        "entropy",
    )
    last = random(M, seed=seed + 6), weight, opd_weight, random(M, seed=seed + 7).abs()
    return dict(zip(names, (logprob, *around, *last), strict=True))


def loss_and_gradients(backend, inputs, coefficients, dtype=None):
    inputs = dict(inputs)
    logprob, entropy = (
        inputs[n].to(dtype or inputs[n].dtype).requires_grad_() for n in ("logprob", "entropy")
    )
    inputs |= {"logprob": logprob, "entropy": entropy}
    with use_backend(policy_loss=backend):
        loss, terms = policy_loss(**inputs, coefficients=coefficients)
    gradients = torch.autograd.grad(loss, (logprob, entropy), allow_unused=True)
    return loss.detach(), terms, *(torch.zeros_like(logprob) if g is None else g for g in gradients)


def one_token(backend, *, logprob=-1.0, coefficients=None, **inputs):
    """Loss terms and d(loss)/d(logprob) of a single token of weight 1."""
    dtype = widest(backend)
    logprob = torch.tensor([logprob], dtype=dtype, requires_grad=True)
    inputs = {"old_logprob": None, "advantage": 0.0, "weight": 1.0} | inputs
    inputs = {k: None if v is None else torch.tensor([v], dtype=dtype) for k, v in inputs.items()}
    with use_backend(policy_loss=backend):
        loss, terms = policy_loss(logprob, **inputs, coefficients=coefficients or PolicyLossCoefficients())
    return terms, loss.item(), torch.autograd.grad(loss, logprob)[0].item()


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_accuracy(assert_accurate, cpu_path, name, spread):
    backend, dtype = cpu_path
    inputs = {k: v.to(dtype) if "weight" not in k else v for k, v in tokens(200, spread=spread).items()}
    floats = [inputs.pop("logprob"), inputs.pop("entropy")]

    def loss(logprob, entropy):
        return policy_loss(logprob, entropy=entropy, **inputs, coefficients=SETTINGS[name])[0]

    assert_accurate("policy_loss", backend, loss, floats)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(0, 10**6),
    st.sampled_from([0.1, 1.0, 15.0]),
    st.sampled_from(list(SETTINGS)),
)
def test_equals_the_reference(M, seed, spread, name):
    inputs = tokens(M, seed, spread)
    results = [
        loss_and_gradients(backend, inputs, SETTINGS[name], torch.float64)
        for backend in ("reference", "torch")
    ]
    for (loss, terms, *gradients), (loss_2, terms_2, *gradients_2) in [results]:
        torch.testing.assert_close(loss_2, loss, rtol=1e-12, atol=1e-14)
        for expected, actual in zip(gradients, gradients_2, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-14)
        for field in fields(PolicyLossTerms):
            torch.testing.assert_close(
                getattr(terms_2, field.name), getattr(terms, field.name), rtol=1e-12, atol=1e-14
            )


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("name", SETTINGS)
def test_gradient_is_the_derivative_of_the_value(backend, name):
    """By finite differences; they cannot see that gate and rho are constants: see the tests of opd."""
    inputs = {k: v.double() for k, v in tokens(12, 3, spread=0.2).items()}
    coefficients = PolicyLossCoefficients(kl=0.3, entropy=0.1)
    logprob, entropy = inputs.pop("logprob"), inputs.pop("entropy")
    with use_backend(policy_loss=backend):
        value = lambda x, h: policy_loss(x, entropy=h, **inputs, coefficients=coefficients)[0]  # noqa: E731
        assert torch.autograd.gradcheck(value, (logprob.requires_grad_(), entropy.requires_grad_()))


@pytest.mark.parametrize(
    ("advantage", "ratio", "value", "gradient", "clipped"),
    [
        (1.0, 1.0, -1.0, -1.0, False),
        (1.0, 1.19, -1.19, -1.19, False),
        (1.0, 1.5, -1.2, 0.0, True),
        (1.0, 0.5, -0.5, -0.5, False),
        (-1.0, 1.0, 1.0, 1.0, False),
        (-1.0, 0.5, 0.8, 0.0, True),
        (-1.0, 2.5, 2.5, 2.5, False),
        (-1.0, 3.5, 3.0, 0.0, True),
        (0.0, 7.0, 0.0, 0.0, False),
    ],
)
def test_clips(backend, advantage, ratio, value, gradient, clipped):
    terms, loss, slope = one_token(backend, old_logprob=-1.0 - math.log(ratio), advantage=advantage)
    assert terms.ratio.item() == pytest.approx(ratio)
    assert (loss, slope) == (pytest.approx(value), pytest.approx(gradient))
    assert terms.clipped.item() is clipped


def test_clip_bounds_are_separate_and_the_dual_clip_can_be_off(backend):
    wide = PolicyLossCoefficients(clip_low=0.1, clip_high=0.6, dual_clip=math.inf)
    old = {ratio: -1.0 - math.log(ratio) for ratio in (1.5, 0.85, 9.0)}
    assert one_token(backend, old_logprob=old[1.5], advantage=1.0, coefficients=wide)[2] == pytest.approx(
        -1.5
    )
    assert one_token(backend, old_logprob=old[0.85], advantage=-1.0, coefficients=wide)[2] == 0
    assert one_token(backend, old_logprob=old[9.0], advantage=-1.0, coefficients=wide)[2] == pytest.approx(
        9.0
    )


def test_without_old_logprob_the_ratio_is_exactly_one(backend):
    inputs = tokens(50) | {"old_logprob": None}
    loss, terms, slope, _ = loss_and_gradients(backend, inputs, PolicyLossCoefficients())
    assert (terms.ratio == 1).all() and not terms.clipped.any()
    assert torch.equal(slope, -inputs["weight"] * inputs["advantage"])
    same = inputs | {"old_logprob": inputs["logprob"].clone()}
    for mine, theirs in zip(
        loss_and_gradients(backend, same, PolicyLossCoefficients())[::2], (loss, slope), strict=True
    ):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("gap", [0.0, 1.0, -1.0, 9.9, -9.9])
def test_k3_inside_its_clamp(backend, gap):
    only_kl = PolicyLossCoefficients(kl=1.0)
    terms, loss, slope = one_token(backend, ref_logprob=-1.0 + gap, coefficients=only_kl)
    assert loss == pytest.approx(math.expm1(gap) - gap) and terms.k3.item() == pytest.approx(loss)
    assert slope == pytest.approx(-math.expm1(gap))


@pytest.mark.parametrize("gap", [11.0, -11.0, 1e4, -1e4, 1e30])
def test_k3_beyond_its_clamp_is_finite_and_has_no_gradient(backend, gap):
    only_kl = PolicyLossCoefficients(kl=1.0)
    _, loss, slope = one_token(backend, ref_logprob=-1.0 + gap, coefficients=only_kl)
    bound = math.copysign(10.0, gap)
    assert loss == pytest.approx(math.expm1(bound) - bound) and slope == 0


@pytest.mark.parametrize("gap", [1e3, -1e3])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_far_apart_policies_stay_finite(backend, gap, advantage):
    every = dict(old_logprob=-1.0 + gap, ref_logprob=-1.0 - gap, skill_logprob=-1.0 + gap)
    terms, loss, slope = one_token(
        backend, advantage=advantage, coefficients=EVERYTHING, entropy=1.0, **every
    )
    assert math.isfinite(loss) and math.isfinite(slope) and terms.ratio.isfinite().all()


def test_null_skill_has_no_delta_and_half_a_gate(backend):
    inputs = tokens(50)
    inputs["skill_logprob"] = inputs["logprob"].clone()
    _, terms, *_ = loss_and_gradients(backend, inputs, SETTINGS["seed"])
    assert (terms.delta == 0).all() and (terms.gate == 0.5).all() and terms.opd == 0


def test_beta_zero_is_a_constant_gate(backend):
    _, terms, *_ = loss_and_gradients(
        backend, tokens(50, spread=20.0), PolicyLossCoefficients(opd=1.0, beta=0.0)
    )
    assert (terms.gate == 0.5).all()


def test_gradient_of_opd_is_minus_the_gate(backend):
    inputs = tokens(50) | {"advantage": torch.zeros(50)}
    _, terms, slope, _ = loss_and_gradients(backend, inputs, PolicyLossCoefficients(opd=1.0))
    on = inputs["opd_weight"] != 0
    assert torch.equal(slope, -inputs["opd_weight"] * terms.gate)
    gap = inputs["skill_logprob"] - inputs["logprob"]
    assert torch.equal(terms.delta[on], gap[on])
    torch.testing.assert_close(terms.gate[on], torch.sigmoid(5 * gap)[on])
    torch.testing.assert_close(terms.opd, (inputs["opd_weight"] * terms.gate * gap).sum())


def test_centred_gate(backend):
    inputs = tokens(50) | {"advantage": torch.zeros(50)}
    _, terms, slope, _ = loss_and_gradients(backend, inputs, PolicyLossCoefficients(opd=2.0, opd_center=0.4))
    torch.testing.assert_close(slope, -2 * inputs["opd_weight"] * (terms.gate - 0.4))


def test_skill_sd_weights_k3_by_a_constant_rho(backend):
    only = PolicyLossCoefficients(skill_kl=1.0)
    for gap, drift in ((0.5, 0.3), (-1.0, -2.0), (0.5, 40.0)):
        _, loss, slope = one_token(
            backend, old_logprob=-1.0 - drift, skill_logprob=-1.0 + gap, coefficients=only
        )
        rho = math.exp(min(drift, 10.0))
        assert loss == pytest.approx(rho * (math.expm1(gap) - gap)) and slope == pytest.approx(
            -rho * math.expm1(gap)
        )


def test_entropy_bonus(backend):
    inputs = tokens(50)
    _, terms, _, slope = loss_and_gradients(backend, inputs, PolicyLossCoefficients(entropy=0.3))
    torch.testing.assert_close(slope, -0.3 * inputs["weight"])
    torch.testing.assert_close(terms.entropy, (inputs["weight"] * inputs["entropy"]).sum())


@pytest.mark.parametrize("name", SETTINGS)
def test_loss_is_the_sum_of_its_terms(backend, name):
    c = SETTINGS[name]
    loss, t, *_ = loss_and_gradients(backend, tokens(50), c, widest(backend))
    total = t.pg + c.kl * t.kl - c.entropy * t.entropy + c.opd * t.opd + c.skill_kl * t.skill_kl
    torch.testing.assert_close(loss, total)
    assert not any(getattr(t, field.name).requires_grad for field in fields(t))


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e38])
def test_tokens_of_weight_zero_cannot_poison(backend, garbage):
    clean = tokens(50)
    dead = {"weight": clean["weight"] == 0, "opd_weight": clean["opd_weight"] == 0}
    dead["both"] = dead["weight"] & dead["opd_weight"]
    assert dead["both"].any()
    reader = {
        "ref_logprob": "weight",
        "advantage": "weight",
        "entropy": "weight",
        "skill_logprob": "opd_weight",
    }
    dirty = {
        k: torch.where(dead[reader.get(k, "both")], garbage, v) if "weight" not in k else v
        for k, v in clean.items()
    }
    loss, terms, *gradients = loss_and_gradients(backend, clean, EVERYTHING)
    loss_2, terms_2, *gradients_2 = loss_and_gradients(backend, dirty, EVERYTHING)
    assert torch.equal(loss, loss_2)
    assert all(torch.equal(a, b) for a, b in zip(gradients, gradients_2, strict=True))
    assert all(torch.equal(getattr(terms, f.name), getattr(terms_2, f.name)) for f in fields(terms))
    assert (gradients_2[0][dead["both"]] == 0).all() and (gradients_2[1][dead["weight"]] == 0).all()


@pytest.mark.parametrize("M", [0, 5])
def test_no_weighted_token_is_an_exact_zero_tied_to_the_inputs(backend, M):
    inputs = {k: torch.full_like(v, math.nan) for k, v in tokens(M).items()}
    inputs |= {"weight": torch.zeros(M), "opd_weight": torch.zeros(M)}
    hidden = torch.ones(M, requires_grad=True)
    with use_backend(policy_loss=backend):
        loss, _ = policy_loss(
            **inputs | {"logprob": hidden * 1.0, "entropy": hidden * 2.0}, coefficients=EVERYTHING
        )
    loss.backward()
    assert loss.item() == 0 and torch.equal(hidden.grad, torch.zeros(M))


def test_nothing_else_gets_a_gradient(backend):
    inputs = {k: v.requires_grad_() for k, v in tokens(20).items()}
    with use_backend(policy_loss=backend):
        policy_loss(**inputs, coefficients=EVERYTHING)[0].backward()
    assert {k for k, v in inputs.items() if v.grad is not None} <= {"logprob", "entropy"}


def test_teacher_of_coefficient_zero_changes_no_bit(backend):
    alone = tokens(50) | {"skill_logprob": None}
    with_teacher = loss_and_gradients(backend, tokens(50), SETTINGS["grpo"])
    without = loss_and_gradients(backend, alone, SETTINGS["grpo"])
    assert torch.equal(with_teacher[0], without[0]) and torch.equal(with_teacher[2], without[2])


def test_upstream_scale_and_backward_twice(backend):
    inputs = tokens(20)
    logprob = inputs["logprob"].requires_grad_()
    with use_backend(policy_loss=backend):
        loss, _ = policy_loss(**inputs, coefficients=EVERYTHING)
    (once,) = torch.autograd.grad(loss, logprob, retain_graph=True)
    (again,) = torch.autograd.grad(loss, logprob, retain_graph=True)
    (scaled,) = torch.autograd.grad(-4 * loss, logprob)
    assert torch.equal(once, again) and torch.equal(scaled, -4 * once)


def test_strided_and_broadcast_inputs(backend):
    inputs = tokens(20) | {"advantage": torch.tensor(0.7).expand(20), "weight": torch.tensor(0.05).expand(20)}
    table = torch.stack([inputs[k] for k in ("old_logprob", "ref_logprob", "skill_logprob")], dim=1)
    strided = inputs | dict(zip(("old_logprob", "ref_logprob", "skill_logprob"), table.T, strict=True))
    dense = {k: v.contiguous() for k, v in inputs.items()}
    for a, b in zip(
        loss_and_gradients(backend, strided, EVERYTHING)[::2],
        loss_and_gradients(backend, dense, EVERYTHING)[::2],
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_loss_and_gradient_do_not_depend_on_the_split(backend):
    inputs = tokens(60)
    whole = loss_and_gradients(backend, inputs, EVERYTHING, widest(backend))
    parts = [
        loss_and_gradients(backend, {k: v[part] for k, v in inputs.items()}, EVERYTHING, widest(backend))
        for part in (slice(0, 7), slice(7, 7), slice(7, 60))
    ]
    torch.testing.assert_close(sum(p[0] for p in parts), whole[0])
    for i in (2, 3):
        assert torch.equal(torch.cat([p[i] for p in parts]), whole[i])


def test_missing_and_ill_shaped_inputs_are_errors():
    inputs = tokens(5)
    for coefficients, missing in (
        (PolicyLossCoefficients(kl=0.1), "ref_logprob"),
        (PolicyLossCoefficients(entropy=0.1), "entropy"),
        (PolicyLossCoefficients(opd=0.1), "skill_logprob"),
        (PolicyLossCoefficients(skill_kl=0.1), "skill_logprob"),
    ):
        with pytest.raises(ValueError, match=f"{missing} is needed"):
            policy_loss(**inputs | {missing: None}, coefficients=coefficients)
    for name in ("advantage", "weight", "old_logprob", "skill_logprob", "opd_weight", "entropy"):
        with pytest.raises(ValueError, match=f"{name} and logprob must both be"):
            policy_loss(**inputs | {name: torch.zeros(4)}, coefficients=EVERYTHING)


@pytest.mark.parametrize(
    "bad", [{"clip_low": 1.5}, {"clip_high": -0.1}, {"dual_clip": 1.0}, {"k3_clamp": 0.0}], ids=str
)
def test_impossible_coefficients_are_errors(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        PolicyLossCoefficients(**bad)
