"""Adapters: what they compute, what moves, what is stored, and that PEFT agrees."""

import json

import numpy as np
import pytest
import torch
from tiny import FAMILIES, tiny_decoder

from sprout.engine import checkpoint
from sprout.engine.forest import Turn
from sprout.engine.lora import LoraConfig, add_lora, merge_lora, read_lora_config
from sprout.engine.optimizer import Optimizer, OptimizerConfig
from sprout.engine.supervised import supervised_loss, supervised_step
from sprout.engine.weights import load_model, read_weights, save_model

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TURNS = [Turn(np.arange(3, 12 + i), np.array([5, 7 + i, 9])) for i in range(3)]


def adapted(base="base", family="qwen2", dtype=torch.float32, targets=ALL, trained=True):
    """A decoder with adapters, of which B is not zero any more unless `trained` is False."""
    decoder = add_lora(tiny_decoder(family, dtype=dtype), LoraConfig(4, 8.0, targets, str(base)), seed=3)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in decoder.named_parameters():
        if trained and "lora_B" in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return decoder


def loss(decoder):
    return supervised_loss(decoder, TURNS, 4096)


def test_a_new_adapter_changes_nothing():
    assert loss(adapted(trained=False)) == loss(tiny_decoder())


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_is_a_change_of_its_weight(family):
    decoder = adapted(family=family, dtype=torch.float64)
    plain = tiny_decoder(family, dtype=torch.float64)
    parts = dict(decoder.named_parameters())
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            stem = name.removesuffix(".weight")
            if f"{stem}.lora_A.weight" in parts:
                low, high = parts[f"{stem}.lora_A.weight"], parts[f"{stem}.lora_B.weight"]
                weight += 2.0 * high @ low  # alpha / rank = 8 / 4
    assert loss(decoder) == pytest.approx(loss(plain), rel=1e-12)
    assert loss(merge_lora(decoder)) == pytest.approx(loss(plain), rel=1e-12)
    assert decoder.lora is None and all(p.requires_grad for p in decoder.parameters())
    assert dict(decoder.named_parameters()).keys() == dict(plain.named_parameters()).keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_the_adapters_move(dtype):
    decoder = adapted(dtype=dtype, targets=("q_proj", "v_proj"))
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    optimizer = Optimizer(decoder, OptimizerConfig(lr=1e-2))
    for _ in range(2):
        supervised_step(decoder, optimizer, TURNS, 4096)
    for name, parameter in decoder.named_parameters():
        assert torch.equal(parameter, before[name]) is (".lora_" not in name), name
    layers = decoder.config.layers
    assert len(optimizer.slots) == layers * 2 * 2 and {s.grad32 is not None for s in optimizer.slots} == {
        dtype == torch.bfloat16
    }


def test_gradients_are_those_of_finite_differences():
    decoder = adapted(dtype=torch.float64, targets=("k_proj", "down_proj"))
    optimizer = Optimizer(decoder, OptimizerConfig(lr=1e-30, clip_grad_norm=None))
    supervised_step(decoder, optimizer, TURNS, 4096)
    for slot in optimizer.slots:
        direction = torch.randn(slot.parameter.shape, generator=torch.Generator().manual_seed(1)).double()
        ends = []
        for sign in (1, -1):
            slot.parameter.data += sign * 1e-6 * direction
            ends.append(loss(decoder))
            slot.parameter.data -= sign * 1e-6 * direction
        slope = (ends[0] - ends[1]) / 2e-6
        assert float((slot.grad * direction).sum()) == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_holds_the_adapter_alone_and_goes_on_exactly(tmp_path, dtype):
    def start():
        decoder = adapted(dtype=dtype, trained=False)
        return decoder, Optimizer(decoder, OptimizerConfig(lr=1e-2))

    decoder, optimizer = start()
    supervised_step(decoder, optimizer, TURNS, 4096)
    folder = checkpoint.step_folder(tmp_path, 1)
    checkpoint.save(folder, decoder, optimizer, {})
    assert {f.name for f in (folder / "model").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    supervised_step(decoder, optimizer, TURNS, 4096)
    again, its_optimizer = start()
    checkpoint.load(folder, again, its_optimizer)
    supervised_step(again, its_optimizer, TURNS, 4096)
    pairs = zip(decoder.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("targets", [ALL, ("q_proj", "up_proj")])
def test_peft_loads_the_stored_adapter_and_computes_the_same(tmp_path, targets):
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    save_model(tiny_decoder(), tmp_path / "base")
    decoder = adapted(tmp_path / "base", targets=targets)
    save_model(decoder, tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    ids = torch.arange(2, 20)[None]
    save_model(merge_lora(decoder), tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, merged(ids).logits, rtol=1e-4, atol=1e-4)


def test_peft_adapters_load_here(tmp_path):
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    save_model(tiny_decoder(), tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    wanted = peft.LoraConfig(
        r=2, lora_alpha=6, target_modules=["o_proj", "gate_proj"], init_lora_weights=False
    )
    theirs = peft.get_peft_model(model, wanted)
    theirs.save_pretrained(tmp_path / "adapter")
    found = read_lora_config(tmp_path / "adapter")
    assert (found.rank, found.alpha, sorted(found.targets)) == (2, 6, ["gate_proj", "o_proj"])
    decoder = add_lora(load_model(tmp_path / "base"), found)
    read_weights(decoder, tmp_path / "adapter")
    ids = torch.arange(2, 20)[None]
    save_model(merge_lora(decoder), tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, merged(ids).logits, rtol=1e-4, atol=1e-4)


def test_bad_adapters_are_named(tmp_path):
    with pytest.raises(ValueError, match="rank=0 must be at least 1"):
        LoraConfig(0, 1.0, ALL, "base")
    with pytest.raises(ValueError, match=r"lora.targets: lm_head is not among"):
        LoraConfig(2, 1.0, ("lm_head",), "base")
    assert read_lora_config(tmp_path) is None
    decoder = adapted()
    save_model(decoder, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    content = json.loads(file.read_text())
    for change, words in (
        ({"peft_type": "IA3"}, "only plain LoRA"),
        ({"use_dora": True}, "only plain LoRA"),
        ({"r": "many"}, "adapter_config.json"),
    ):
        file.write_text(json.dumps(content | change))
        with pytest.raises(ValueError, match=words):
            read_lora_config(tmp_path / "adapter")
    file.write_text("{}")
    with pytest.raises(ValueError, match="only plain LoRA"):
        read_lora_config(tmp_path / "adapter")
    del content["r"]
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="lacks 'r'"):
        read_lora_config(tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="copy the adapter again"):
        read_weights(decoder, tmp_path / "adapter")
