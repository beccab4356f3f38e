"""Small random models and turns shared by the engine's tests."""

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from sprout.engine.forest import Turn
from sprout.engine.model import Decoder, ModelConfig

FAMILIES = ("qwen2", "qwen3", "llama")


def tiny_config(family="qwen2", tied=True, vocab=50, heads=4, kv_heads=2, layers=2, **extra):
    sizes = dict(
        model_type=family,
        vocab_size=vocab,
        hidden_size=8 * heads if family == "llama" else 32,  # its config demands a multiple of the heads
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        rms_norm_eps=1e-6,
    )
    return ModelConfig.from_hf(sizes | {"head_dim": 8} | extra)


def tiny_decoder(family="qwen2", seed=0, dtype=torch.float32, scale=6.0, **config):
    """A random decoder whose logits are far from uniform and whose biases and norms are not trivial."""
    decoder = Decoder(tiny_config(family, **config)).initialize(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in decoder.parameters():
            p.mul_(scale if p.dim() > 1 else 1.0).add_(torch.randn(p.shape, generator=generator) * 0.1)
    return decoder.to(dtype)


class WideRope(torch.nn.Module):
    """Rotary tables in fp64; transformers computes them in fp32 whatever the model's dtype."""

    def __init__(self, narrow):
        super().__init__()
        self.inv_freq = narrow.inv_freq.double()

    def forward(self, x, position_ids):
        angle = position_ids[..., None] * self.inv_freq
        return torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()


def widen(model):
    """Replace what transformers computes in fp32 even for an fp64 model: norms and rotary tables."""
    model.model.rotary_emb = WideRope(model.model.rotary_emb)
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            norm = torch.nn.RMSNorm(module.weight.shape[0], eps=module.variance_epsilon, dtype=torch.float64)
            norm.weight = module.weight
            model.set_submodule(name, norm)


def as_transformers(decoder):
    """The same weights in transformers' own model, which shares nothing with the forest code."""
    config = AutoConfig.for_model(**decoder.config.hf)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(decoder.dtype)
    state = {k: v.clone() for k, v in decoder.state_dict().items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all("lm_head" in name for name in missing)
    model.tie_weights()
    if decoder.dtype == torch.float64:
        widen(model)
    return model.eval()


def random_turns(seed, count=6, vocab=50, skills=True):
    """Turns with branching shared prefixes, partial masks and every per-token value."""
    rng = np.random.default_rng(seed)
    pool = [rng.integers(0, vocab, rng.integers(1, 12))]
    turns = []
    for _ in range(count):
        context = pool[rng.integers(len(pool))]
        action = rng.integers(0, vocab, rng.integers(1, 5))
        teacher = _teacher(rng, context, vocab) if skills and rng.random() < 0.8 else None
        mask = (rng.random(len(action)) < 0.8).astype(np.float32)
        turns.append(Turn(context, action, teacher, mask, **_values(rng, len(action))))
        pool.append(np.concatenate([context, action, rng.integers(0, vocab, rng.integers(0, 4))]))
    return turns


def _teacher(rng, context, vocab):
    """Skill before the action, or inserted somewhere inside (after the task)."""
    cut = len(context) if rng.random() < 0.5 else rng.integers(0, len(context))
    return np.concatenate([context[:cut], rng.integers(0, vocab, rng.integers(1, 6)), context[cut:]])


def _values(rng, n):
    return {
        "advantage": np.full(n, rng.normal(), np.float32),
        "old_logprob": (-3 + rng.normal(size=n)).astype(np.float32),
        "ref_logprob": (-3 + rng.normal(size=n)).astype(np.float32),
    }
