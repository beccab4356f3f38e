"""A whole recipe with adapters: what is trained, stored, exported and planned."""

import pytest
import torch
from rich.console import Console

from sprout.engine.lora import LoraConfig, add_lora, merge_lora, read_lora_config
from sprout.engine.model import Decoder
from sprout.engine.weights import load_model
from sprout.seed.config import load_config
from sprout.seed.export import export_model
from sprout.seed.memory import memory_per_gpu, trained_parameters
from sprout.seed.policy import load_policy
from sprout.seed.run import run_recipe, start
from sprout.seed.stages.base import model_config
from sprout.seed.stages.train import final_model

SMALL = ["lora.rank=2", "train.updates=1", "eval.select_tasks=0", "eval.report_tasks=2"]


def test_both_stages_train_one_adapter_of_an_unchanged_base(tmp_path):
    run = start(load_config("tiny", [*SMALL, f"run.dir={tmp_path}"]), Console(quiet=True))
    run_recipe(run)
    base = load_model(run.base_model())
    stage1, final = (load_policy(path, run.config).decoder for path in (run.start_model(), final_model(run)))
    for decoder in (stage1, final):
        assert decoder.lora.rank == 2 and decoder.lora.base == str(run.base_model())
    names = dict(base.named_parameters())
    moved = set()
    for (name, before), after in zip(stage1.named_parameters(), final.parameters(), strict=True):
        if name in names:
            assert torch.equal(before, after) and torch.equal(after, names[name])
        elif not torch.equal(before, after):
            moved.add(name.split(".")[-2])
    assert moved == {"lora_A", "lora_B"}

    merged, adapter = tmp_path / "merged", tmp_path / "adapter"
    source = export_model(run.folder.root, merged)
    assert export_model(run.folder.root, adapter, adapter=True) == source
    assert read_lora_config(adapter).rank == 2
    exported = load_model(merged)
    for ours, theirs in zip(merge_lora(final).parameters(), exported.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_export_of_an_adapter_needs_one(tiny, tmp_path):
    with pytest.raises(ValueError, match="has no adapter: the run trained all weights"):
        export_model(tiny.folder.root, tmp_path / "adapter", adapter=True)


def test_plan_counts_what_moves():
    config = load_config("tiny", ["lora.rank=2", "model.dtype=bfloat16"])
    model, lora = model_config(config.base, 300), config.lora
    decoder = add_lora(Decoder(model), LoraConfig(lora.rank, lora.alpha, lora.targets, "base"))
    assert trained_parameters(config, model) == sum(
        p.numel() for p in decoder.parameters() if p.requires_grad
    )
    full = load_config("tiny", ["model.dtype=bfloat16"])
    assert memory_per_gpu(config, model)["optimizer"] < memory_per_gpu(full, model)["optimizer"] / 5
