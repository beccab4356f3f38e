"""decode_attention and sample: forward only, one row per live sequence.

Shapes: B sequences of n positions, Hq and Hkv heads of size D, V vocabulary, b bytes per element.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sprout.bench.case import (
    COMPILED,
    EAGER,
    Case,
    Program,
    Setting,
    Work,
    compiled,
    cuda_only,
    library,
    ours,
    plain,
)
from sprout.kernels import decode_attention, sample

PAGE = {"quick": 16, "cpu": 16, "cuda": 256}  # flash-attn takes multiples of 256 only
HEADS = {"quick": (4, 2), "cpu": (8, 2), "cuda": (32, 8)}
BATCHES = {"quick": ((4, 64),), "cpu": ((16, 512), (64, 512)), "cuda": ((64, 2048), (256, 4096))}
HEAD_SIZES = {"quick": (64,), "cpu": (64, 128), "cuda": (64, 128)}
LOGITS = {"quick": ((4, 1000),), "cpu": ((64, 400), (64, 32000)), "cuda": ((64, 32000), (256, 151936))}
TEMPERATURE, TOP_P = 0.8, 0.95


def attention_cases(setting: Setting) -> Iterator[Case]:
    (Hq, Hkv), page = HEADS[setting.scale], PAGE[setting.scale]
    for B, n in BATCHES[setting.scale]:
        for D in HEAD_SIZES[setting.scale]:
            pages = B * n // page
            q = setting.random(B, Hq, D, grad=False)
            caches = [setting.random(pages, page, Hkv, D, grad=False) for _ in range(2)]
            order = torch.randperm(pages, device=setting.device)
            index = (
                order.view(B, -1).int(),
                torch.arange(B, dtype=torch.int32, device=setting.device),
                torch.full((B,), n, dtype=torch.int32, device=setting.device),
            )
            traffic = 2 * B * n * Hkv * D * setting.dtype.itemsize
            yield Case(
                op="decode_attention",
                shape={"sequences": B, "length": n, "head_size": D},
                dtype=setting.dtype,
                work={"forward": Work(4 * B * n * Hq * D, traffic, "bytes 2 B n Hkv D b")},
                providers=ours("decode_attention", decode_attention, q, *caches, *index)
                | {
                    EAGER: plain(paged_sdpa, q, *caches, *index),
                    "torch SDPA, keys in place": plain(sdpa, q, *(gathered(x, index[0]) for x in caches)),
                    COMPILED: compiled(setting, paged_sdpa, q, *caches, *index),
                    "flash-attn": partial(
                        flash_decode, setting, (q, *caches), table=index[0], length=index[2]
                    ),
                },
            )


def sample_cases(setting: Setting) -> Iterator[Case]:
    for B, V in LOGITS[setting.scale]:
        for top_p in (1.0, TOP_P):
            logits = setting.random(B, V, grad=False)
            key, position = torch.arange(B, device=setting.device), setting.integers(100, B)
            choose = partial(our_choice, top_p, key, position)
            theirs = partial(their_choice, top_p)
            yield Case(
                op="sample",
                shape={"rows": B, "vocab": V, "top_p": str(top_p)},
                dtype=setting.dtype,
                work={"forward": Work(5 * B * V, B * V * setting.dtype.itemsize, "bytes B V b")},
                providers=ours("sample", choose, logits)
                | {EAGER: plain(theirs, logits), COMPILED: compiled(setting, theirs, logits)},
            )


def gathered(pages: Tensor, table: Tensor) -> Tensor:
    """Pages [P, page, Hkv, D] in the order of `table` [B, n / page] -> [B, Hkv, n, D]."""
    return pages[table.long()].flatten(1, 2).transpose(1, 2)


def sdpa(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)[:, :, 0]


def paged_sdpa(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, table: Tensor, sequence: Tensor, length: Tensor
) -> Tensor:
    """Gather the pages, then SDPA; all sequences are equally long, so no mask is needed."""
    return sdpa(q, gathered(k_pages, table), gathered(v_pages, table))


def flash_decode(setting: Setting, inputs: tuple[Tensor, ...], table: Tensor, length: Tensor) -> Program:
    cuda_only(setting)
    attend = library("flash_attn").flash_attn_with_kvcache

    def run(q: Tensor, k_pages: Tensor, v_pages: Tensor) -> Tensor:
        return attend(q[:, None], k_pages, v_pages, cache_seqlens=length, block_table=table)[:, 0]

    return Program(run, inputs)


def our_choice(top_p: float, key: Tensor, position: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    return sample(logits, temperature=TEMPERATURE, top_p=top_p, key=key, position=position)


def their_choice(top_p: float, logits: Tensor) -> tuple[Tensor, Tensor]:
    """As transformers' logits processors and multinomial do it, with the log-prob."""
    logprobs = (logits.float() / TEMPERATURE).log_softmax(dim=1)
    kept = logprobs
    if top_p < 1:
        ascending, order = logprobs.sort(dim=1)
        cut = ascending.exp().cumsum(dim=1) <= 1 - top_p
        kept = logprobs.masked_fill(cut.scatter(1, order, cut), -torch.inf)
    token = torch.multinomial(kept.softmax(dim=1), 1)
    return token[:, 0], logprobs.gather(1, token)[:, 0]
