"""A decoder-only transformer over forests: Qwen2/2.5, Qwen3 and the Llama family.

Trained and scored-only rows go through the layers in lockstep. The scored-only half runs without autograd
and reads the keys and values of the trained half *of that layer*, so no KV cache is kept, weights are read
once per layer for both halves, and activation checkpointing recomputes the trained half alone. After the
attention of the last layer only the rows that are read go on: nothing else depends on the others.

Shapes: T trained rows, S scored-only rows, R = T + S, Q read rows, B decode rows, H hidden size, D head size,
V tokens.
Parameter names are those of transformers, so its checkpoints load and ours load there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sprout.kernels import add_rms_norm, decode_attention, linear, rms_norm, rotary, swiglu, tree_attention
from sprout.kernels.tree_attention.intervals import Intervals

if TYPE_CHECKING:
    from sprout.engine.forest import Forest
    from sprout.engine.lora import LoraConfig
    from sprout.engine.pages import PagedCache

FAMILIES = ("qwen2", "qwen3", "llama")


@dataclass(frozen=True)
class ModelConfig:
    """What the decoder needs from a transformers config; `hf` keeps the whole config for export."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    max_position: int
    rms_eps: float
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    initializer_range: float
    hf: dict[str, Any]

    @staticmethod
    def from_hf(content: Mapping[str, Any]) -> ModelConfig:
        """The configuration that a `config.json` holds; nothing else of its folder is looked at.

        Raises ValueError for an architecture the decoder lacks.
        """
        from transformers import AutoConfig

        hf = AutoConfig.for_model(**content)
        family = hf.model_type
        if family not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise ValueError(f"model_type {family!r} is not supported; the decoder computes {known}")
        if getattr(hf, "use_sliding_window", False):
            raise ValueError("use_sliding_window=true is not supported; set it to false in config.json")
        if hf.hidden_act != "silu":
            raise ValueError(f"hidden_act {hf.hidden_act!r} is not supported; the decoder computes silu")
        attention_bias = bool(getattr(hf, "attention_bias", False))
        return ModelConfig(
            family=family,
            vocab_size=hf.vocab_size,
            hidden_size=hf.hidden_size,
            intermediate_size=hf.intermediate_size,
            layers=hf.num_hidden_layers,
            heads=hf.num_attention_heads,
            kv_heads=hf.num_key_value_heads or hf.num_attention_heads,
            head_size=getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads,
            max_position=hf.max_position_embeddings,
            rms_eps=hf.rms_norm_eps,
            tied=bool(hf.tie_word_embeddings),
            qkv_bias=family == "qwen2" or attention_bias,
            output_bias=family != "qwen2" and attention_bias,
            mlp_bias=bool(getattr(hf, "mlp_bias", False)),
            qk_norm=family == "qwen3",
            initializer_range=hf.initializer_range,
            hf=hf.to_dict(),
        )

    def parameters_per_row(self) -> int:
        """Weights of the layers that one row is multiplied with (embedding and head excluded)."""
        attention = self.hidden_size * self.head_size * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden_size * self.intermediate_size)


@dataclass(frozen=True)
class Rope:
    """Rotary tables of some rows: cos and sin, each [rows, D/2]."""

    cos: Tensor
    sin: Tensor


class RopeTable(nn.Module):
    """Turns positions into rotary angles; transformers knows the frequencies (llama3, yarn, ...)."""

    inv_freq: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        inv_freq, self.scale = _frequencies(config)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, position: Tensor, dtype: torch.dtype) -> Rope:
        """position [rows] -> tables in fp32, or fp64 for an fp64 model."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        angle = position.to(wide)[:, None] * self.inv_freq.to(wide)[None, :]
        return Rope(angle.cos() * self.scale, angle.sin() * self.scale)


def _frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    hf = AutoConfig.for_model(**config.hf)
    kind = hf.rope_parameters.get("rope_type", "default")
    if kind == "default":
        exponent = torch.arange(0, config.head_size, 2, dtype=torch.float32) / config.head_size
        return 1.0 / hf.rope_parameters["rope_theta"] ** exponent, 1.0
    return ROPE_INIT_FUNCTIONS[kind](hf, torch.device("cpu"))


class Linear(nn.Linear):
    """torch's layer and its parameters, multiplied by `sprout.kernels.linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The normalised x + residual, and that sum."""
        return add_rms_norm(x, residual, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.head_size = c.head_size
        self.q_proj = Linear(c.hidden_size, c.heads * c.head_size, bias=c.qkv_bias)
        self.k_proj = Linear(c.hidden_size, c.kv_heads * c.head_size, bias=c.qkv_bias)
        self.v_proj = Linear(c.hidden_size, c.kv_heads * c.head_size, bias=c.qkv_bias)
        self.o_proj = Linear(c.heads * c.head_size, c.hidden_size, bias=c.output_bias)
        self.q_norm = RMSNorm(c.head_size, c.rms_eps) if c.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(c.head_size, c.rms_eps) if c.qk_norm else nn.Identity()

    def project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """x [rows, H] -> rotated q [rows, Hq, D], rotated k and v [rows, Hkv, D]."""
        heads = (-1, self.head_size)
        q = self.q_norm(self.q_proj(x).unflatten(1, heads))
        k = self.k_norm(self.k_proj(x).unflatten(1, heads))
        q, k = rotary(q, k, rope.cos, rope.sin)
        return q, k, self.v_proj(x).unflatten(1, heads)

    def output(self, heads: Tensor) -> Tensor:
        return self.o_proj(heads.flatten(1))


class MLP(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(c.hidden_size, c.intermediate_size, bias=c.mlp_bias)
        self.up_proj = Linear(c.hidden_size, c.intermediate_size, bias=c.mlp_bias)
        self.down_proj = Linear(c.intermediate_size, c.hidden_size, bias=c.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


@dataclass(frozen=True)
class Half:
    """What one half of a forest brings to a layer: its rotary tables and what its rows may see.

    read   indices of the rows that attend and go on; None: all. The others still give keys and values.
    """

    rope: Rope
    intervals: Intervals
    read: Tensor | None = None

    def reading(self, rows: Tensor) -> Half:
        """The same half in the last layer, where only `rows` go on."""
        return Half(self.rope, self.intervals.of_queries(rows), rows)

    def going_on(self, *x: Tensor) -> tuple[Tensor, ...]:
        return x if self.read is None else tuple(rows[self.read] for rows in x)


@dataclass(frozen=True)
class DecodeRows:
    """Where B rows of live sequences stand: see `kernels.decode_attention` and `engine.pages`."""

    rope: Rope
    page_table: Tensor
    sequence: Tensor
    length: Tensor
    slot: Tensor


class Layer(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(c)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_eps)

    def forward(
        self, trained: Tensor, scored: Tensor | None, halves: tuple[Half, Half], recompute: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Advance both halves by one layer: trained [T, H] with autograd, scored [S, H] without."""
        if recompute:
            trained, k, v = checkpoint(self._advance_trained, trained, halves[0], use_reentrant=False)
        else:
            trained, k, v = self._advance_trained(trained, halves[0])
        if scored is not None:
            scored = self._advance_scored(scored, k.detach(), v.detach(), halves[1])
        return trained, scored

    def _advance_trained(self, x: Tensor, half: Half) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.self_attn.project(self.input_layernorm(x), half.rope)
        x, q = half.going_on(x, q)
        heads, _ = tree_attention(q, k, v, half.intervals)
        return self._finish(x, heads), k, v

    @torch.no_grad()
    def _advance_scored(self, x: Tensor, trunk_k: Tensor, trunk_v: Tensor, half: Half) -> Tensor:
        q, k, v = self.self_attn.project(self.input_layernorm(x), half.rope)
        x, q = half.going_on(x, q)
        heads, _ = tree_attention(q, torch.cat([trunk_k, k]), torch.cat([trunk_v, v]), half.intervals)
        return self._finish(x, heads)

    def decode(self, x: Tensor, rows: DecodeRows, k_pages: Tensor, v_pages: Tensor) -> Tensor:
        """Write the keys and values of the B rows into their slots, then attend through the page table."""
        q, k, v = self.self_attn.project(self.input_layernorm(x), rows.rope)
        k_pages.flatten(0, 1).index_copy_(0, rows.slot, k)
        v_pages.flatten(0, 1).index_copy_(0, rows.slot, v)
        heads = decode_attention(q, k_pages, v_pages, rows.page_table, rows.sequence, rows.length)
        return self._finish(x, heads)

    def _finish(self, x: Tensor, heads: Tensor) -> Tensor:
        normalised, x = self.post_attention_layernorm.add(x, self.self_attn.output(heads))
        return x + self.mlp(normalised)


class Trunk(nn.Module):
    """Everything below the LM head; exists so that parameter names start with `model.`."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_eps)


class Decoder(nn.Module):
    """The policy. `recompute` turns on activation checkpointing of the trained half."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = None if config.tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.rope = RopeTable(config)
        self.recompute = False
        self.compute_dtype: torch.dtype | None = None  # None: that of the weights
        self.lora: LoraConfig | None = None  # None: all weights are trained

    @property
    def head_weight(self) -> Tensor:
        """[V, H] weight of the LM head; the embedding itself when tied."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    @property
    def device(self) -> torch.device:
        """Where it computes; weights may rest in CPU memory (`engine.reference`)."""
        return self.rope.inv_freq.device

    @property
    def dtype(self) -> torch.dtype:
        return self.compute_dtype or self.model.embed_tokens.weight.dtype

    def initialize(self, seed: int) -> Decoder:
        """Fresh weights as transformers draws them: normal matrices, zero biases, unit norms."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                values = torch.randn(parameter.shape, generator=generator) * self.config.initializer_range
                parameter.data.copy_(values)
            else:
                parameter.data.fill_(0.0 if name.endswith("bias") else 1.0)
        return self

    def forward(self, forest: Forest) -> tuple[Tensor, Tensor | None]:
        """The dual forward: final hidden states [Q, H] of the rows that the forest reads, in two parts.

        First the trained ones; then, without autograd, the scored-only ones (None when the forest has none).
        """
        self.check_length(int(forest.position.max()) + 1 if forest.rows else 0)
        T, read = forest.trained, forest.read
        trained = self.model.embed_tokens(forest.token[:T])
        scored = self.model.embed_tokens(forest.token[T:]).detach() if forest.rows > T else None
        rope = self.rope(forest.position, self.dtype)
        halves = (
            Half(Rope(rope.cos[:T], rope.sin[:T]), forest.trained_intervals),
            Half(Rope(rope.cos[T:], rope.sin[T:]), forest.scored_intervals),
        )
        last = (
            halves[0].reading(read[: forest.trained_read]),
            halves[1].reading(read[forest.trained_read :] - T),
        )
        recompute = self.recompute and torch.is_grad_enabled()
        by_layer = [halves] * (self.config.layers - 1) + [last]
        for layer, halves in zip(self.model.layers, by_layer, strict=True):
            trained, scored = layer(trained, scored, halves, recompute)
        return self.model.norm(trained), None if scored is None else self.model.norm(scored).detach()

    @torch.no_grad()
    def decode(
        self,
        token: Tensor,
        position: Tensor,
        cache: PagedCache,
        sequence: Tensor,
        length: Tensor,
        slot: Tensor,
    ) -> Tensor:
        """Hidden states [B, H] of B rows of live sequences, whose keys and values go to `slot` of `cache`.

        Row i is token[i] at position[i] of the sequence in page-table row sequence[i], of which it sees the
        first length[i] positions; prefill chunks and single decode rows mix freely.
        """
        x = self.model.embed_tokens(token)
        rows = DecodeRows(self.rope(position, self.dtype), cache.page_table, sequence, length, slot)
        for layer, k_pages, v_pages in zip(self.model.layers, cache.k, cache.v, strict=True):
            assert isinstance(layer, Layer)
            x = layer.decode(x, rows, k_pages, v_pages)
        return self.model.norm(x)

    def check_length(self, tokens: int) -> None:
        """Raise ValueError for a sequence longer than the positions the model was trained for."""
        limit = self.config.max_position
        if tokens > limit:
            raise ValueError(
                f"a sequence of {tokens} tokens exceeds the model's max_position_embeddings={limit}; "
                "lower rollout.max_context_tokens, env.max_turns or the history"
            )
