import math
from dataclasses import fields
from importlib import import_module

import pytest
import torch

from sprout.kernels import (
    PolicyLossCoefficients,
    PolicyLossTerms,
    paired_logprob_loss,
    policy_loss,
    selected_logprob,
    use_backend,
)

N, S, V, H = 9, 7, 40, 8
SETTINGS = {
    "grpo": PolicyLossCoefficients(),
    "seed": PolicyLossCoefficients(kl=0.01, entropy=0.001, opd=0.01),
    "everything": PolicyLossCoefficients(kl=0.3, entropy=0.1, opd=0.7, opd_center=0.1, skill_kl=0.2),
}


@pytest.fixture(params=["torch", "torch over native", "triton", "triton that forms logits again"])
def backend(request, monkeypatch):
    """Each backend: the composition over torch's and over native log-probs; Triton with the student's logits
    kept, and with both of them in small workspaces."""
    if request.param.startswith("torch"):
        parts = request.param.removeprefix("torch over ")
        if parts == "native":
            pytest.importorskip("sprout.kernels._native", reason="not built", exc_type=ImportError)
        with use_backend(selected_logprob=parts):
            yield "torch"
        return
    request.getfixturevalue("interpreter")
    paired = import_module("sprout.kernels.paired_logprob_loss.triton")
    logprobs = import_module("sprout.kernels.selected_logprob.triton_backward")
    monkeypatch.setattr(paired, "NARROWEST_KEPT", 1 if request.param == "triton" else 10**6)
    monkeypatch.setattr(logprobs, "WORKSPACE_BYTES", 0)
    monkeypatch.setattr(logprobs, "NARROWEST_WORKSPACE", 24)
    yield "triton"


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(low, high, count, seed=0):
    return torch.randint(low, high, (count,), generator=torch.Generator().manual_seed(seed))


def operands(dtype=torch.float32):
    """Small logits: log-probs near those of `tokens`, so ratios stay moderate and amplify no error."""
    return [(0.3 * random(N, H, seed=1)).to(dtype), random(V, H, seed=2, dtype=dtype)]


def tokens(M, dtype=torch.float32):
    """M tokens: the later half without a teacher, one whose teacher is its own row, a third of weight 0."""
    row, teacher_row = integers(0, N, M, 3), integers(0, N + S, M, 4)
    teacher_row[M // 2 :] = -1
    teacher_row[:1] = row[:1]
    around = [-3.7 + 0.5 * random(M, seed=seed) for seed in (5, 6)]
    weight, opd_weight = (random(M, seed=seed).clamp(min=-0.4).add(0.4) / M for seed in (7, 8))
    return dict(
        row=row,
        target=integers(0, V, M, 9),
        scored=(0.3 * random(S, H, seed=10)).to(dtype),
        teacher_row=teacher_row,
        temperature=0.8,
        old_logprob=around[0],
        ref_logprob=around[1],
        advantage=random(M, seed=11),
        token_weight=weight,
        opd_weight=torch.where(teacher_row >= 0, opd_weight, 0.0),
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_accuracy(assert_accurate, backend, name):
    arguments = tokens(37)

    def loss(hidden, weight):
        scored = arguments["scored"].to(hidden.dtype)
        changed = arguments | {"scored": scored}
        value, pair = paired_logprob_loss(hidden, weight, **changed, coefficients=SETTINGS[name])
        return value, pair.student, pair.skill.nan_to_num(1.0), pair.entropy

    assert_accurate("paired_logprob_loss", backend, loss, operands())


@pytest.mark.parametrize("M", [1, 16, 17])
def test_sizes_and_float16(assert_accurate, backend, M):
    arguments = tokens(M, torch.float16)

    def loss(hidden, weight):
        scored = arguments["scored"].to(hidden.dtype)
        changed = arguments | {"scored": scored}
        return paired_logprob_loss(hidden, weight, **changed, coefficients=SETTINGS["everything"])[0]

    assert_accurate("paired_logprob_loss", backend, loss, operands(torch.float16))


@pytest.mark.parametrize("backend", ["torch", "torch over native"], indirect=True)
def test_bfloat16(assert_accurate, backend):
    arguments = tokens(17, torch.bfloat16)

    def loss(hidden, weight):
        scored = arguments["scored"].to(hidden.dtype)
        changed = arguments | {"scored": scored}
        return paired_logprob_loss(hidden, weight, **changed, coefficients=SETTINGS["everything"])[0]

    assert_accurate("paired_logprob_loss", backend, loss, operands(torch.bfloat16))


def run(backend, inputs, arguments, coefficients=SETTINGS["everything"]):
    leaves = [x.clone().requires_grad_() for x in inputs]
    with use_backend(paired_logprob_loss=backend):
        loss, pair = paired_logprob_loss(*leaves, **arguments, coefficients=coefficients)
    return loss.detach(), pair, torch.autograd.grad(loss, leaves)


def test_terms_equal_the_reference(backend):
    expected, actual = (run(name, operands(), tokens(37))[1] for name in ("reference", backend))
    for field in fields(PolicyLossTerms):
        torch.testing.assert_close(
            getattr(actual.terms, field.name), getattr(expected.terms, field.name), rtol=1e-4, atol=1e-5
        )


def test_composition_is_the_ops_one_after_the_other():
    """On the torch backend: the same bits as selected_logprob twice, then policy_loss."""
    arguments, inputs = tokens(37), operands()
    loss, pair, gradients = run("torch", inputs, arguments)
    hidden, weight = (x.clone().requires_grad_() for x in inputs)
    row, target, teacher_row = arguments["row"], arguments["target"], arguments["teacher_row"]
    student, entropy = selected_logprob(hidden, weight, row, target, 0.8, with_entropy=True)
    taught = (teacher_row >= 0) & (teacher_row != row)
    rows = torch.cat([inputs[0], arguments["scored"]])
    teacher, _ = selected_logprob(rows, inputs[1], teacher_row[taught], target[taught], 0.8)
    skill = torch.where(teacher_row == row, student.detach(), math.nan)
    skill[taught] = teacher
    by_hand, _ = policy_loss(
        student,
        weight=arguments["token_weight"],
        skill_logprob=skill,
        entropy=entropy,
        coefficients=SETTINGS["everything"],
        **{name: arguments[name] for name in ("old_logprob", "ref_logprob", "advantage", "opd_weight")},
    )
    expected = torch.autograd.grad(by_hand, (hidden, weight))
    torch.testing.assert_close(pair.skill, skill, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(loss, by_hand) and all(map(torch.equal, gradients, expected))


def test_the_students_own_row_as_teacher_gives_delta_zero(backend):
    arguments = tokens(20)
    arguments["teacher_row"] = arguments["row"].clone()
    _, pair, _ = run(backend, operands(), arguments)
    assert torch.equal(pair.skill, pair.student)
    assert (pair.terms.delta == 0).all() and (pair.terms.gate == 0.5).all()


def test_given_skill_logprobs_fill_the_gaps(backend):
    arguments = tokens(20)
    given = torch.linspace(-5, -1, 20)
    _, pair, _ = run(backend, operands(), arguments | {"skill_logprob": given})
    missing = arguments["teacher_row"] < 0
    assert torch.equal(pair.skill[missing], given[missing]) and not (pair.skill == given)[~missing].any()
    _, pair, _ = run(backend, operands(), arguments)
    assert pair.skill.isnan().tolist() == missing.tolist()


def test_teachers_change_no_bit_of_the_gradient_without_distillation(backend):
    arguments = tokens(20)
    alone = arguments | {"scored": None, "teacher_row": torch.full((20,), -1)}
    with_teacher, without = (run(backend, operands(), a, SETTINGS["grpo"]) for a in (arguments, alone))
    assert torch.equal(with_teacher[0], without[0]) and all(map(torch.equal, with_teacher[2], without[2]))


def test_teachers_get_no_gradient(backend):
    arguments = tokens(20)
    arguments["scored"] = arguments["scored"].requires_grad_()
    leaves = [x.requires_grad_() for x in operands()]
    with use_backend(paired_logprob_loss=backend):
        loss, _ = paired_logprob_loss(*leaves, **arguments, coefficients=SETTINGS["everything"])
    loss.backward()
    assert arguments["scored"].grad is None and all(x.grad is not None for x in leaves)


def test_dead_tokens_may_hold_garbage(backend):
    """Weight 0 and a hidden row of NaN; no tokens at all; every token dead."""
    hidden, weight = operands()
    arguments = tokens(20)
    hidden[4] = math.nan
    used = arguments["row"] == 4
    assert used.any()
    for name in ("token_weight", "opd_weight"):
        arguments[name] = torch.where(used | (arguments["teacher_row"] == 4), 0.0, arguments[name])
    loss, _, gradients = run(backend, [hidden, weight], arguments)
    assert loss.isfinite() and all(g.isfinite().all() for g in gradients) and (gradients[0][4] == 0).all()
    dead = arguments | {"token_weight": torch.zeros(20), "opd_weight": torch.zeros(20)}
    none = {k: v[:0] if k not in ("scored", "temperature") else v for k, v in arguments.items()}
    for nothing in (dead, none):
        loss, _, gradients = run(backend, [hidden, weight], nothing)
        assert loss == 0 and all((g == 0).all() for g in gradients)


def test_upstream_scale_and_backward_twice(backend):
    leaves = [x.requires_grad_() for x in operands()]
    with use_backend(paired_logprob_loss=backend):
        loss, _ = paired_logprob_loss(*leaves, **tokens(20), coefficients=SETTINGS["seed"])
        with torch.no_grad():
            quiet, _ = paired_logprob_loss(*leaves, **tokens(20), coefficients=SETTINGS["seed"])
    once = torch.autograd.grad(loss, leaves, retain_graph=True)
    again = torch.autograd.grad(loss, leaves, retain_graph=True)
    scaled = torch.autograd.grad(-4 * loss, leaves)
    assert torch.equal(quiet, loss.detach()) and not quiet.requires_grad
    for a, b, c in zip(once, again, scaled, strict=True):
        assert torch.equal(a, b) and torch.equal(c, -4 * a)


def test_bad_arguments_are_errors():
    arguments = tokens(5) | {"coefficients": SETTINGS["seed"]}
    for changed, message in (
        ({"teacher_row": torch.zeros(4, dtype=torch.int64)}, r"teacher_row must be int64 \[5\]"),
        ({"teacher_row": torch.full((5,), -2)}, r"teacher_row must be in \[-1, 16\), found -2"),
        ({"teacher_row": torch.full((5,), N + S)}, r"teacher_row must be in \[-1, 16\), found"),
        ({"scored": random(S, H + 1)}, r"scored must be \[S, 8\]"),
        ({"ref_logprob": None}, "ref_logprob is needed"),
        ({"advantage": torch.zeros(4)}, "advantage and logprob must both be"),
        ({"target": torch.full((5,), V)}, "target must be in"),
        ({"temperature": 0.0}, "temperature must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            paired_logprob_loss(*operands(), **arguments | changed)
