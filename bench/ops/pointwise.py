"""rms_norm, add_rms_norm, rotary and swiglu: a few FLOPs per byte, so their ceiling is the copy bandwidth.

Shapes: R rows, H hidden size, I intermediate size, Hq and Hkv heads of size D, b bytes per element.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from sprout.bench.case import (
    COMPILED,
    EAGER,
    Case,
    Make,
    Program,
    Setting,
    Work,
    compiled,
    cuda_only,
    library,
    ours,
    plain,
)
from sprout.kernels import add_rms_norm, rms_norm, rotary, swiglu

EPS = 1e-6
ROWS = {"quick": (256,), "cpu": (1024, 4096), "cuda": (4096, 16384, 65536)}
HIDDEN = {"quick": 128, "cpu": 896, "cuda": 4096}
INTERMEDIATE = {"quick": 384, "cpu": 4864, "cuda": 11008}
HEADS = {"quick": (4, 2), "cpu": (14, 2), "cuda": (32, 8)}
HEAD_SIZES = {"quick": (64,), "cpu": (64, 128), "cuda": (64, 128)}


def rms_norm_cases(setting: Setting) -> Iterator[Case]:
    H, b = HIDDEN[setting.scale], setting.dtype.itemsize
    for R in ROWS[setting.scale]:
        x, weight = setting.random(R, H), setting.random(H)
        yield Case(
            op="rms_norm",
            shape={"rows": R, "hidden": H},
            dtype=setting.dtype,
            work={
                "forward": Work(4 * R * H, 2 * R * H * b, "bytes 2 R H b"),
                "backward": Work(8 * R * H, 3 * R * H * b, "bytes 3 R H b"),
                "full": Work(12 * R * H, 5 * R * H * b, "bytes 5 R H b"),
            },
            providers=ours("rms_norm", lambda x, weight: rms_norm(x, weight, EPS), x, weight)
            | {
                EAGER: plain(qwen2_rms_norm, x, weight),
                "torch rms_norm": plain(lambda x, w: F.rms_norm(x, w.shape, w, EPS), x, weight),
                COMPILED: compiled(setting, qwen2_rms_norm, x, weight),
                "liger-kernel": partial(liger_rms_norm, setting, x, weight),
            },
        )


def add_rms_norm_cases(setting: Setting) -> Iterator[Case]:
    H, b = HIDDEN[setting.scale], setting.dtype.itemsize
    for R in ROWS[setting.scale]:
        x, residual, weight = setting.random(R, H), setting.random(R, H), setting.random(H)
        n = R * H
        yield Case(
            op="add_rms_norm",
            shape={"rows": R, "hidden": H},
            dtype=setting.dtype,
            work={
                "forward": Work(5 * n, 4 * n * b, "bytes 4 R H b"),
                "backward": Work(9 * n, 4 * n * b, "bytes 4 R H b"),
                "full": Work(14 * n, 8 * n * b, "bytes 8 R H b"),
            },
            providers=ours("add_rms_norm", partial(add_rms_norm, eps=EPS), x, residual, weight)
            | {
                EAGER: plain(eager_add_rms_norm, x, residual, weight),
                COMPILED: compiled(setting, eager_add_rms_norm, x, residual, weight),
                "liger-kernel": partial(liger_add_rms_norm, setting, x, residual, weight),
            },
        )


def rotary_cases(setting: Setting) -> Iterator[Case]:
    (Hq, Hkv), b = HEADS[setting.scale], setting.dtype.itemsize
    for R in ROWS[setting.scale]:
        for D in HEAD_SIZES[setting.scale]:
            q, k = setting.random(R, Hq, D), setting.random(R, Hkv, D)
            angle = setting.random(R, D // 2, grad=False, dtype=torch.float32)
            cos, sin = angle.cos(), angle.sin()
            once = Work(3 * R * (Hq + Hkv) * D, 2 * R * (Hq + Hkv) * D * b, "bytes 2 R (Hq + Hkv) D b")
            yield Case(
                op="rotary",
                shape={"rows": R, "head_size": D},
                dtype=setting.dtype,
                work={
                    "forward": once,
                    "backward": once,
                    "full": Work(2 * once.flops, 2 * once.bytes, "bytes 4 R (Hq + Hkv) D b"),
                },
                providers=ours("rotary", rotary, q, k, cos, sin) | rotary_peers(setting, q, k, cos, sin),
            )


def swiglu_cases(setting: Setting) -> Iterator[Case]:
    width, b = INTERMEDIATE[setting.scale], setting.dtype.itemsize
    for R in ROWS[setting.scale]:
        gate, up = setting.random(R, width), setting.random(R, width)
        n = R * width
        yield Case(
            op="swiglu",
            shape={"rows": R, "intermediate": width},
            dtype=setting.dtype,
            work={
                "forward": Work(5 * n, 3 * n * b, "bytes 3 R I b"),
                "backward": Work(10 * n, 5 * n * b, "bytes 5 R I b"),
                "full": Work(15 * n, 8 * n * b, "bytes 8 R I b"),
            },
            providers=ours("swiglu", swiglu, gate, up)
            | {
                EAGER: plain(eager_swiglu, gate, up),
                COMPILED: compiled(setting, eager_swiglu, gate, up),
                "liger-kernel": partial(liger_swiglu, setting, gate, up),
            },
        )


def qwen2_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """The composition of transformers' Qwen2RMSNorm."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def eager_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return qwen2_rms_norm(total, weight), total


def eager_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def rotary_peers(setting: Setting, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> dict[str, Make]:
    from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

    heads_first = tuple(x.detach().transpose(0, 1)[None].contiguous().requires_grad_() for x in (q, k))
    tables = tuple(torch.cat([x, x], dim=-1)[None].to(setting.dtype) for x in (cos, sin))

    def liger() -> Program:
        cuda_only(setting)
        return Program(library("liger_kernel.transformers.rope").liger_rotary_pos_emb, heads_first + tables)

    return {
        EAGER: plain(apply_rotary_pos_emb, *heads_first, *tables),
        COMPILED: compiled(setting, apply_rotary_pos_emb, *heads_first, *tables),
        "liger-kernel": liger,
    }


def liger_rms_norm(setting: Setting, x: Tensor, weight: Tensor) -> Program:
    cuda_only(setting)
    function = library("liger_kernel.transformers.functional").liger_rms_norm
    return Program(lambda x, w: function(x, w, EPS, in_place=False), (x, weight))


def liger_add_rms_norm(setting: Setting, x: Tensor, residual: Tensor, weight: Tensor) -> Program:
    cuda_only(setting)
    function = library("liger_kernel.transformers.functional").liger_fused_add_rms_norm
    return Program(lambda x, r, w: function(x, r, w, EPS, in_place=False), (x, residual, weight))


def liger_swiglu(setting: Setting, gate: Tensor, up: Tensor) -> Program:
    cuda_only(setting)
    return Program(library("liger_kernel.transformers.functional").liger_swiglu, (gate, up))
