"""The measured models: random weights of a named size or a model folder, ours and in transformers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from sprout.engine.model import Decoder, ModelConfig
from sprout.engine.weights import load_model
from sprout.seed.policy import model_folder

SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
}
QUICKSTART: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 400,
}
SMOLLM2_135M: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
}
SIZES = {"small": SMALL, "quickstart": QUICKSTART, "135m": SMOLLM2_135M}


def build_decoder(model: str, device: torch.device, dtype: torch.dtype = torch.float32) -> Decoder:
    """A named size with random weights, or the model stored in a folder."""
    if model in SIZES:
        config = {"model_type": "qwen2", "max_position_embeddings": 4096, "tie_word_embeddings": True}
        return Decoder(ModelConfig.from_hf(config | SIZES[model])).initialize(seed=0).to(device, dtype)
    folder = model_folder(model)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"--model {model}: neither one of {', '.join(SIZES)}, nor smollm2, nor a model folder"
        )
    return load_model(folder, device, dtype)


def as_transformers(decoder: Decoder, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """transformers' own model with a copy of the decoder's weights, in its dtype or in another."""
    config = AutoConfig.for_model(**copy.deepcopy(decoder.config.hf))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    missing, unexpected = model.load_state_dict(decoder.state_dict(), strict=False)
    assert not unexpected and all("lm_head" in name for name in missing), (missing, unexpected)
    model.tie_weights()
    return model.to(decoder.device, dtype or decoder.dtype).eval()
