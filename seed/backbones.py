"""Shapes of the paper's backbones, so that a run can be planned where their weights are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sprout.engine.model import ModelConfig

QWEN25_3B: dict[str, Any] = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 11008,
    "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
    "max_position_embeddings": 32768, "tie_word_embeddings": True,
}  # fmt: skip
QWEN25_7B: dict[str, Any] = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "max_position_embeddings": 32768, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_17B: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 40960, "tie_word_embeddings": True,
}  # fmt: skip
BACKBONES = {
    "Qwen2.5-3B-Instruct": QWEN25_3B,
    "Qwen2.5-7B-Instruct": QWEN25_7B,
    "Qwen3-1.7B": QWEN3_17B,
}


def backbone(path: str) -> ModelConfig | None:
    """The shape of the backbone that a folder is named after; None for any other name."""
    shape = BACKBONES.get(Path(path).name)
    return None if shape is None else ModelConfig.from_hf(shape)
