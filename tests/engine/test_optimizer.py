"""Optimizer: against torch's own, master weights, clipping, schedules, exact state, bad gradients."""

import copy
import math

import pytest
import torch
from torch import nn

from sprout.engine.muon import muon_, orthogonalize
from sprout.engine.optimizer import Optimizer, OptimizerConfig, build_optimizer, global_norm
from sprout.engine.schedule import Schedule


class Toy(nn.Module):
    """Parameter names and shapes of a decoder: embedding, one layer with matrix and bias, norm."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.Module()
        layer.up_proj = nn.Linear(8, 12, dtype=dtype)
        layer.down_proj = nn.Linear(12, 8, dtype=dtype)
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(16, 8, dtype=dtype)
        self.model.layers = nn.ModuleList([layer])
        self.model.norm = nn.LayerNorm(8, bias=False, dtype=dtype)

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        layer = self.model.layers[0]
        x = self.model.embed_tokens(token)
        return self.model.norm(x + layer.down_proj(torch.tanh(layer.up_proj(x))))


def backward(model: Toy, seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    token = torch.randint(16, (6,), generator=generator)
    target = torch.randn(6, 8, generator=generator)
    (scale * (model(token).float() - target).square().mean()).backward()


def train(model: Toy, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_adamw_equals_torch_with_decay_on_matrices_only():
    ours, theirs = Toy(), Toy()
    optimizer = build_optimizer(ours, OptimizerConfig(lr=1e-2, weight_decay=0.1, clip_grad_norm=0.5))
    matrices = [p for p in theirs.parameters() if p.dim() > 1]
    vectors = [p for p in theirs.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    torch_adamw = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.999), eps=1e-8)
    for step in range(5):
        train(ours, optimizer, range(step, step + 1))
        torch_adamw.zero_grad()
        backward(theirs, step)
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        torch_adamw.step()
    for x, y in zip(ours.parameters(), theirs.parameters(), strict=True):
        # Where a first moment nearly cancels, its rounding is a visible part of a step of lr = 0.01.
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


def test_bf16_weight_at_one_moves_at_lr_1e_6():
    weight = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    weight.weight.data.fill_(1.0)
    optimizer = Optimizer(weight, OptimizerConfig(lr=1e-6, weight_decay=0.0))
    for _ in range(2100):
        optimizer.zero_grad()
        weight.weight.sum().backward()
        optimizer.step()
    assert optimizer.slots[0].master.item() == pytest.approx(1 - 2100e-6, rel=1e-4)
    assert weight.weight.item() == 1 - 2**-8  # the next bf16 number below 1


def test_bf16_gradients_of_many_micro_batches_add_up_in_fp32():
    weight = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    optimizer = Optimizer(weight, OptimizerConfig(clip_grad_norm=None))
    for _ in range(1024):
        weight.weight.sum().backward()
    assert optimizer.gradients()[0].dtype == torch.float32
    assert optimizer.gradients()[0].item() == 1024.0
    optimizer.zero_grad()
    assert optimizer.gradients() == []


def test_a_second_optimizer_takes_over_once_the_first_is_gone():
    weight = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    optimizer = Optimizer(weight, OptimizerConfig())
    del optimizer
    optimizer = Optimizer(weight, OptimizerConfig())
    weight.weight.sum().backward()
    assert [grad.item() for grad in optimizer.gradients()] == [1.0]


def test_fp32_and_fp64_weights_are_their_own_masters():
    for dtype in (torch.float32, torch.float64):
        model = Toy(dtype)
        optimizer = Optimizer(model, OptimizerConfig(lr=1e-3))
        assert all(s.master.data_ptr() == s.parameter.data_ptr() for s in optimizer.slots)
        assert not any(name.startswith("master") for name in optimizer.tensors())
        assert all(t.dtype == dtype for t in optimizer.tensors().values())
        before = copy.deepcopy(model)
        train(model, optimizer, range(1))
        assert not equal(model, before)


def test_clipping_uses_one_global_norm():
    model = Toy()
    optimizer = Optimizer(model, OptimizerConfig(clip_grad_norm=1.0))
    backward(model, 0, scale=100.0)
    expected = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
    assert optimizer.step() == pytest.approx(expected, rel=1e-6)
    assert expected > 1.0
    total = global_norm([s.moments["exp_avg"] for s in optimizer.slots])
    assert total == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_non_finite_gradient_changes_nothing_and_is_named(poison, name):
    model = Toy()
    optimizer = Optimizer(model, OptimizerConfig(name=name, lr=1e-2))
    train(model, optimizer, range(2))
    weights, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    optimizer.zero_grad()
    backward(model, 2)
    model.model.layers[0].up_proj.weight.grad[1, 2] = poison
    assert not math.isfinite(optimizer.step())
    assert optimizer.non_finite == ("model.layers.0.up_proj.weight",)
    assert equal(model, weights)
    assert optimizer.updates == state["updates"]
    assert all(torch.equal(t, state["tensors"][k]) for k, t in optimizer.tensors().items())
    train(model, optimizer, range(2, 3))
    assert optimizer.non_finite == ()
    assert optimizer.updates == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_state_dict_continues_bit_identically(name, dtype):
    config = OptimizerConfig(name=name, lr=1e-2, schedule=Schedule("cosine", total_steps=6, warmup_ratio=0.3))
    straight = Toy(dtype)
    optimizer = Optimizer(straight, config)
    train(straight, optimizer, range(3))
    stopped, state = copy.deepcopy(straight.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(straight, optimizer, range(3, 6))

    resumed = Toy(dtype)
    resumed.load_state_dict(stopped)
    fresh = Optimizer(resumed, config)
    fresh.load_state_dict(state)
    train(resumed, fresh, range(3, 6))
    assert equal(straight, resumed)
    assert all(torch.equal(t, fresh.tensors()[k]) for k, t in optimizer.tensors().items())


def test_state_of_another_method_or_shape_is_refused():
    adamw, muon = (Optimizer(Toy(), OptimizerConfig(name=name)) for name in ("adamw", "muon"))
    with pytest.raises(ValueError, match="does not fit"):
        adamw.load_state_dict(muon.state_dict())
    state = copy.deepcopy(adamw.state_dict())
    state["tensors"]["exp_avg.model.norm.weight"] = torch.zeros(9)
    with pytest.raises(ValueError, match=r"exp_avg.model.norm.weight \(\(9,\) stored, \(8,\) here\)"):
        adamw.load_state_dict(state)


def test_muon_takes_layer_matrices_and_adamw_the_rest():
    optimizer = Optimizer(Toy(), OptimizerConfig(name="muon"))
    muon = {slot.name for slot in optimizer.slots if "momentum" in slot.moments}
    assert muon == {"model.layers.0.up_proj.weight", "model.layers.0.down_proj.weight"}


def test_muon_equals_torch_up_to_its_bf16_iterations():
    torch.manual_seed(3)
    shapes = [(12, 8), (8, 12), (12, 8)]
    ours = [torch.randn(s) for s in shapes]
    theirs = [nn.Parameter(p.clone()) for p in ours]
    momentum = [torch.zeros(s) for s in shapes]
    reference = torch.optim.Muon(theirs, lr=0.02, momentum=0.95, weight_decay=0.1)
    for _ in range(3):
        grads = [torch.randn(s) for s in shapes]
        for parameter, grad in zip(theirs, grads, strict=True):
            parameter.grad = grad.clone()
        reference.step()
        muon_(ours, grads, momentum, lr=0.02, beta=0.95, weight_decay=0.1)
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y.detach(), rtol=0, atol=2e-3)


def test_orthogonalize_brings_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((16, 16), (8, 24), (24, 8)):
        singular = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
        assert singular.max() < 1.3
        assert singular.min() > 0.3
    assert torch.equal(orthogonalize(torch.zeros(4, 4)), torch.zeros(4, 4))


def test_frozen_parameters_are_left_out_and_missing_gradients_skip():
    model = Toy()
    model.model.embed_tokens.weight.requires_grad_(False)
    optimizer = Optimizer(model, OptimizerConfig(lr=1e-2))
    assert not any("embed_tokens" in slot.name for slot in optimizer.slots)
    model.model.norm.weight.grad = torch.ones(8)
    before = copy.deepcopy(model)
    optimizer.step()
    assert not torch.equal(model.model.norm.weight, before.model.norm.weight)
    assert torch.equal(model.model.layers[0].up_proj.weight, before.model.layers[0].up_proj.weight)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to optimize"):
        Optimizer(model, OptimizerConfig())


def test_tied_weights_are_one_parameter():
    model = nn.Module()
    model.embed = nn.Embedding(4, 3)
    model.head = nn.Linear(3, 4, bias=False)
    model.head.weight = model.embed.weight
    assert [slot.name for slot in Optimizer(model, OptimizerConfig()).slots] == ["embed.weight"]


def test_schedules():
    linear = Schedule("linear", total_steps=10, warmup_ratio=0.2)
    assert [linear.factor(s) for s in (0, 1, 2, 6, 10, 99)] == [0.5, 1.0, 1.0, 0.5, 0.0, 0.0]
    cosine = Schedule("cosine", total_steps=8, final_ratio=0.1)
    assert [cosine.factor(s) for s in (0, 4, 8)] == pytest.approx([1.0, 0.55, 0.1])
    assert Schedule("constant").factor(10**6) == 1.0
    assert Schedule("constant", warmup_steps=4).factor(1) == 0.5
    assert Schedule("constant", total_steps=30, warmup_ratio=0.1).factor(1) == pytest.approx(2 / 3)


def test_optimizer_reports_the_scheduled_rate():
    model = Toy()
    optimizer = Optimizer(model, OptimizerConfig(lr=4.0, schedule=Schedule("constant", warmup_steps=4)))
    assert optimizer.lr == 1.0
    backward(model, 0)
    optimizer.step()
    assert optimizer.lr == 2.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: OptimizerConfig(name="adam"), "adamw or muon"),
        (lambda: OptimizerConfig(lr=math.nan), "lr=nan"),
        (lambda: OptimizerConfig(lr=-1.0), "lr=-1.0"),
        (lambda: OptimizerConfig(betas=(0.9, 1.0)), "betas"),
        (lambda: OptimizerConfig(eps=0.0), "eps"),
        (lambda: OptimizerConfig(clip_grad_norm=0.0), "clip_grad_norm"),
        (lambda: Schedule("step"), "constant, linear or cosine"),
        (lambda: Schedule("cosine"), "total_steps"),
        (lambda: Schedule("linear", total_steps=5, warmup_ratio=1.5), "warmup_ratio"),
        (lambda: Schedule("linear", total_steps=5, warmup_ratio=0.5, warmup_steps=2), "not both"),
    ],
)
def test_bad_settings_are_one_line_errors(build, message):
    with pytest.raises(ValueError, match=message) as error:
        build()
    assert "\n" not in str(error.value)
