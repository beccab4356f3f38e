"""The planner against what an update on the CPU really allocates."""

import numpy as np
import pytest
from torch.profiler import ProfilerActivity, profile

from sprout.engine.forest import Turn
from sprout.engine.model import Decoder, ModelConfig
from sprout.engine.optimizer import Optimizer, OptimizerConfig
from sprout.engine.update import UpdateSettings, policy_update
from sprout.kernels import PolicyLossCoefficients
from sprout.seed.config import load_config
from sprout.seed.memory import memory_per_gpu, parameters

ROWS, MICRO_BATCHES = 1024, 2


def peak_allocated(run):
    """Bytes of tensors alive at once, at most."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        kept = run()
    events = (e for e in record.profiler.kineto_results.events() if e.name() == "[memory]")
    sizes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    assert kept is not None
    return np.cumsum(sizes).max()


def turns():
    """Two micro-batches of unshared sequences, whose every row is read."""
    rng = np.random.default_rng(0)
    length = 128
    return [
        Turn(
            rng.integers(0, 500, 1),
            rng.integers(0, 500, length),
            advantage=np.ones(length, np.float32),
            old_logprob=np.full(length, -3, np.float32),
        )
        for _ in range(MICRO_BATCHES * ROWS // length)
    ]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("hidden", "inner", "layers", "kv_heads"), [(192, 512, 4, 2), (128, 768, 8, 4)])
def test_the_plan_is_within_a_tenth_of_what_an_update_allocates(
    hidden, inner, layers, kv_heads, checkpointing
):
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": kv_heads, "vocab_size": 500}
    model = ModelConfig.from_hf({"model_type": "qwen2", "tie_word_embeddings": True, **sizes})
    config = load_config(
        None,
        [
            f"train.rows_per_micro_batch={ROWS}",
            f"train.activation_checkpointing={str(checkpointing).lower()}",
            "objective.kl_coef=0",
        ],
    )

    def update():
        decoder = Decoder(model).initialize(0)
        decoder.recompute = checkpointing
        optimizer = Optimizer(decoder, OptimizerConfig())
        settings = UpdateSettings(PolicyLossCoefficients(), rows_per_micro_batch=ROWS)
        policy_update(decoder, optimizer, turns(), settings)
        return decoder, optimizer

    needs = memory_per_gpu(config, model)
    planned = needs["weights"] + needs["optimizer"] + needs["activations"]
    assert planned == pytest.approx(peak_allocated(update), rel=0.1)


def reference_bytes(model, *overrides):
    return memory_per_gpu(load_config(None, list(overrides)), model)["reference"]


def test_an_offloaded_reference_borrows_the_room_of_gradients_and_activations():
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 1000}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = ModelConfig.from_hf({"model_type": "qwen2", "tie_word_embeddings": True, **sizes})
    weights = 4 * parameters(model)
    assert reference_bytes(model, "objective.kl_coef=0", "train.reference_offload=true") == 0
    assert reference_bytes(model) == weights
    assert reference_bytes(model, "machine.gpus=4") == weights / 4
    assert reference_bytes(model, "train.reference_offload=true") == 0
    assert reference_bytes(model, "train.reference_offload=true", "machine.gpus=4") == 0
    # LoRA has next to no gradients to make room: of the weights only what the activations leave remains.
    few_rows = ("train.reference_offload=true", "train.rows_per_micro_batch=1", "lora.rank=1")
    assert 0.9 * weights < reference_bytes(model, *few_rows) < weights
