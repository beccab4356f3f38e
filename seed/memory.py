"""What one device has to hold, in bytes, from the configuration and the model's shape alone."""

from __future__ import annotations

from sprout.engine.model import ModelConfig
from sprout.seed.schema import Config

BYTES = {"float32": 4, "bfloat16": 2}
MASTER = GRADIENT = MOMENT = 4  # fp32


def parameters(model: ModelConfig) -> int:
    """Weights of the layers, the embedding and an untied head; norms and biases are too few to count."""
    heads = 1 if model.tied else 2
    return model.parameters_per_row() + heads * model.vocab_size * model.hidden_size


def trained_parameters(config: Config, model: ModelConfig) -> int:
    """Those that move: all of them, or with LoRA rank * (in + out) of every targeted layer."""
    if not config.lora.rank:
        return parameters(model)
    hidden, inner = model.hidden_size, model.intermediate_size
    query, cached = model.heads * model.head_size, model.kv_heads * model.head_size
    sides = {
        "q_proj": hidden + query,
        "k_proj": hidden + cached,
        "v_proj": hidden + cached,
        "o_proj": query + hidden,
        "gate_proj": hidden + inner,
        "up_proj": hidden + inner,
        "down_proj": inner + hidden,
    }
    return model.layers * config.lora.rank * sum(sides[name] for name in config.lora.targets)


def memory_per_gpu(config: Config, model: ModelConfig) -> dict[str, float]:
    """Bytes by purpose, with fully sharded weights on config.machine.gpus devices.

    weights      fp32 masters of what is trained, of which every device holds its share, and above one device
                 or in bf16 a compute copy that generation needs whole
    optimizer    gradients and AdamW's two moments, sharded
    reference    the Stage-1 model of the KL term, sharded; see `_reference`
    activations  of one micro-batch, all of whose rows count as trained and read: the most there can be
    """
    count, size, gpus = parameters(model), BYTES[config.model.dtype], config.machine.gpus
    trained = trained_parameters(config, model)
    copied = gpus > 1 or size < MASTER or trained < count
    cached = 2 * model.layers * model.kv_heads * model.head_size * size
    return {
        "weights": trained * MASTER / gpus + (count * size if copied else 0),
        "optimizer": trained * (GRADIENT + 2 * MOMENT) / gpus,
        "reference": _reference(config, model) if config.objective.kl_coef > 0 else 0.0,
        "KV cache": config.rollout.cache_tokens * cached,
        "activations": activations(config, model) * size,
    }


def _reference(config: Config, model: ModelConfig) -> float:
    """The frozen reference; with train.reference_offload what exceeds the room that it only borrows.

    Its weights then are on the device while there are neither gradients nor activations of an update, only
    one layer's; above one device a few at a time, in the room of the copy that generation needs.
    """
    size, gpus = BYTES[config.model.dtype], config.machine.gpus
    weights = parameters(model) * size
    if not config.train.reference_offload:
        return weights / gpus
    if gpus > 1:
        return 0.0
    scoring = config.train.rows_per_micro_batch * _kept_by_layer(model) * size
    gradients = trained_parameters(config, model) * GRADIENT
    return max(0.0, weights + scoring - gradients - activations(config, model) * size)


def activations(config: Config, model: ModelConfig) -> int:
    """Numbers that a micro-batch needs between its forward and its backward.

    Those of every layer; with train.activation_checkpointing only the inputs, and one layer's. The backward
    of a layer adds the gradients of the MLP's inside and of its input and output.
    """
    hidden, kept = model.hidden_size, _kept_by_layer(model)
    backward = 2 * model.intermediate_size + 2 * hidden
    layers = model.layers * hidden + kept if config.train.activation_checkpointing else model.layers * kept
    return config.train.rows_per_micro_batch * (layers + backward)


def _kept_by_layer(model: ModelConfig) -> int:
    """Numbers per row: the input and the sum after attention, both normalised and not (4 H), rotated queries
    and their outputs, keys and values, one log-sum-exp per head, two norms, three times the MLP's inside."""
    attention = 2 * model.head_size * (model.heads + model.kv_heads) + model.heads
    return 4 * model.hidden_size + attention + 2 + 3 * model.intermediate_size
