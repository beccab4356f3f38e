"""Fresh weights that already look things up: the first two layers start as induction heads.

A transformer learns in-context look-up late and suddenly, since its parts are of use only together (Olsson et
al. 2022, arXiv:2209.11895); a small model on a CPU would spend most of its training waiting for it. As in
mimetic initialization (Trockman and Kolter 2023, arXiv:2305.09828), the parts are put in place, and training
keeps, bends or drops them. Head pair i of layer 0 writes what stood i + 1 tokens back. Head pair i of layer 1
looks for tokens whose (i + 1)-back matches its own i-back, and copies the token it finds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sprout.engine.model import Attention, Decoder

SHARPNESS = 20.0  # logits by which a head prefers its distance, per fast frequency
MATCH = 5.0  # scale of the queries and keys that compare content
COPY = 2.0  # how much louder than it stood a found token is copied
EMBEDDING_STD = 0.3  # so that a token still shows beside what layer 0 writes
FAST = 0.02  # radians per token: above, a frequency tells distances; below, it carries content


def initialize_induction(decoder: Decoder, seed: int) -> Decoder:
    """Overwrites biases and matrices of the first two layers' attention, and scales the embedding.

    Raises ValueError for a model with fewer than two layers or without biases on queries and keys.
    """
    c = decoder.config
    if c.layers < 2 or not c.qkv_bias:
        raise ValueError("induction heads take two layers, and biases on queries and keys")
    kv, size = c.kv_heads, c.head_size
    basis = _orthogonal(c.hidden_size, seed)
    written = basis[: kv * size].view(kv, size, -1)
    copied = basis[-kv * size :].view(kv, size, -1)  # beside what is written, where the model has room
    code = copied[0]  # [D, H]: a token as the heads see it
    decoder.model.embed_tokens.weight.data.mul_(EMBEDDING_STD / c.initializer_range)
    first, second = (layer.self_attn for layer in decoder.model.layers[:2])
    _attend_back(first, decoder.rope.inv_freq)
    _write(first, code.expand(kv, -1, -1), written)
    wanted = torch.cat([code[None] / EMBEDDING_STD, written[:-1]])
    _match(second, wanted, written, decoder.rope.inv_freq)
    _write(second, COPY * copied, copied)
    return decoder


def _attend_back(attention: Attention, frequency: Tensor) -> None:
    """Biases whose scores peak i + 1 tokens back for key head i."""
    query, key = (_by_head(layer.bias.data, attention) for layer in (attention.q_proj, attention.k_proj))
    fast = (frequency > FAST).float()
    amplitude = fast * math.sqrt(SHARPNESS * math.sqrt(2 * len(frequency)))
    key[:] = torch.cat([amplitude, 0 * amplitude])
    group = len(query) // len(key)
    for head, bias in enumerate(query):
        angle = -(head // group + 1) * frequency
        bias[:] = torch.cat([amplitude * angle.cos(), amplitude * angle.sin()])


def _match(attention: Attention, wanted: Tensor, offered: Tensor, frequency: Tensor) -> None:
    """Group i asks with `wanted[i]`, keys answer with `offered[i]`: [KV, D, H], where rotation spares it."""
    still = torch.cat([frequency <= FAST] * 2).float()[:, None]
    query, key = (_by_head(layer.weight.data, attention) for layer in (attention.q_proj, attention.k_proj))
    key[:] = MATCH * still * offered
    query[:] = (MATCH * still * wanted).repeat_interleave(len(query) // len(key), dim=0)


def _write(attention: Attention, read: Tensor, written: Tensor) -> None:
    """Values are `read`, the output writes `written`: [KV, D, H]; a group's heads share the writing."""
    value = _by_head(attention.v_proj.weight.data, attention)
    value[:] = read
    group = attention.o_proj.in_features // attention.v_proj.out_features
    shares = (written / group).repeat_interleave(group, dim=0)
    attention.o_proj.weight.data.copy_(shares.flatten(0, 1).T)


def _by_head(parameter: Tensor, attention: Attention) -> Tensor:
    """[heads * D, ...] as [heads, D, ...]."""
    return parameter.view(-1, attention.head_size, *parameter.shape[1:])


def _orthogonal(size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
