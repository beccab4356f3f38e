"""LoRA: low-rank adapters beside frozen linear layers (Hu et al., arXiv 2106.09685).

    y = x W^T + b + (alpha / rank) (x A^T) B^T        A [rank, in], B [out, rank], B = 0 at first

Only A and B are trained, so gradients, master weights and moments shrink to theirs: a 7B model in bf16 then
trains on one 80 GB device. An adapter is stored in PEFT's layout and PEFT loads it:

    adapter_config.json  adapter_model.safetensors
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sprout.engine.model import Decoder, Linear

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."  # what PEFT puts before the model's own names
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class LoraConfig:
    """Size of the adapters and the linear layers that get one; `base` names the model they belong to."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    base: str

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"lora.rank={self.rank} must be at least 1")
        unknown = [name for name in self.targets if name not in LINEARS]
        if unknown or not self.targets:
            found = ", ".join(unknown) or "nothing"
            raise ValueError(f"lora.targets: {found} is not among the linear layers {', '.join(LINEARS)}")


class LoraLinear(Linear):
    """A frozen linear layer with its adapter; takes over the tensors of `linear`."""

    def __init__(self, linear: Linear, rank: int, scale: float) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias, self.scale = linear.weight, linear.bias, scale
        like: dict[str, Any] = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.lora_A = Linear(self.in_features, rank, bias=False, **like)
        self.lora_B = Linear(rank, self.out_features, bias=False, **like)

    def forward(self, x: Tensor) -> Tensor:
        """x [rows, in] -> [rows, out]."""
        return super().forward(x) + self.lora_B(self.lora_A(x)) * self.scale

    def merged(self) -> Linear:
        """The plain layer that computes the same, up to the rounding of its weight."""
        change = self.lora_B.weight.double() @ self.lora_A.weight.double() * self.scale
        plain = Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        plain.weight = nn.Parameter((self.weight.double() + change).to(self.weight.dtype))
        plain.bias = self.bias
        return plain


@torch.no_grad()
def add_lora(decoder: Decoder, config: LoraConfig, seed: int = 0) -> Decoder:
    """Freeze `decoder` and give the targeted layers adapters, which at first change nothing."""
    decoder.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parent, name, linear in _linears(decoder, config.targets):
        layer = LoraLinear(linear, config.rank, config.alpha / config.rank)
        bound = 1 / math.sqrt(linear.in_features)  # as PEFT draws A
        values = torch.rand(layer.lora_A.weight.shape, generator=generator)
        layer.lora_A.weight.copy_(bound * (2 * values - 1))
        layer.lora_B.weight.zero_()
        setattr(parent, name, layer)
    decoder.lora = config
    return decoder


@torch.no_grad()
def merge_lora(decoder: Decoder) -> Decoder:
    """Fold the adapters into the weights: a plain decoder, all of whose weights train again."""
    for parent, name, linear in _linears(decoder, LINEARS):
        if isinstance(linear, LoraLinear):
            setattr(parent, name, linear.merged())
    decoder.lora = None
    return decoder.requires_grad_(True)


def read_lora_config(folder: Path) -> LoraConfig | None:
    """What the adapter in `folder` is; None for a folder without one. Raises ValueError for another kind."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_bytes())
        if found.get("peft_type") != "LORA" or found.get("bias", "none") != "none" or found.get("use_dora"):
            raise ValueError("only plain LoRA adapters without biases are supported")
        targets = tuple(found["target_modules"])
        return LoraConfig(found["r"], found["lora_alpha"], targets, found["base_model_name_or_path"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{file}: {what}") from None


def write_lora_config(config: LoraConfig, folder: Path) -> None:
    """adapter_config.json as PEFT reads it."""
    content = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": config.base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "target_modules": list(config.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    (folder / CONFIG_FILE).write_text(json.dumps(content, indent=2) + "\n")


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return ".lora_" in name


def _linears(decoder: Decoder, names: tuple[str, ...]) -> Iterator[tuple[nn.Module, str, Linear]]:
    """(owner, attribute, layer) of the named linear layers, in the order of the layers."""
    for layer in decoder.model.layers:
        for parent in (layer.self_attn, layer.mlp):
            for name, child in list(parent.named_children()):
                if name in names:
                    yield parent, name, child
