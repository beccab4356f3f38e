"""tree_attention: plain causal, a group that shares its prompt, and the canonical forest.

FLOPs count what a query sees: q.k and p.v forward, five products backward (scores are recomputed), for P
visible pairs of Hq heads of size D. Peers without trees compute the unrolled sequences, with keys and values
repeated; their effective rate counts the same P pairs, so sharing shows as speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sprout.bench.case import (
    Case,
    Make,
    Program,
    Setting,
    UnavailableError,
    Work,
    cuda_only,
    library,
    ours,
    plain,
    require_compiler,
)
from sprout.bench.ops.trees import Tree, canonical, causal, group
from sprout.bench.workload import PairShape
from sprout.kernels import tree_attention

SDPA = "torch SDPA, unrolled"
HEADS = {"quick": (2, 1), "cpu": (8, 2), "cuda": (32, 8)}
HEAD_SIZES = {"quick": (64,), "cpu": (64, 128), "cuda": (64, 128)}
CAUSAL_ROWS = {"quick": (128,), "cpu": (1024, 4096), "cuda": (2048, 8192)}
GROUPS = {"quick": (32, 4, 16), "cpu": (512, 8, 128), "cuda": (2048, 16, 512)}
SHAPES = {
    "quick": PairShape(trajectories=2, prompt=16, turns=2, observation=6, action=4),
    "cpu": PairShape(),
    "cuda": PairShape(trajectories=16, prompt=512, turns=8, observation=96, action=48),
}
DENSE_MASK_PAIRS = 2**26  # a dense mask is no contender beyond


def cases(setting: Setting) -> Iterator[Case]:
    scale, device = setting.scale, setting.device
    trees = [causal(rows, device) for rows in CAUSAL_ROWS[scale]]
    trees += [group(*GROUPS[scale], device), canonical(SHAPES[scale], device)]
    for D in HEAD_SIZES[scale]:
        for tree in trees:
            yield case(setting, tree, *HEADS[scale], D)


def case(setting: Setting, tree: Tree, Hq: int, Hkv: int, D: int) -> Case:
    R, pairs = tree.rows, tree.visible_pairs
    q, k, v = setting.random(R, Hq, D), setting.random(R, Hkv, D), setting.random(R, Hkv, D)
    flops, once = pairs * Hq * D, 2 * R * (Hq + Hkv) * D * setting.dtype.itemsize
    return Case(
        op="tree_attention",
        shape={"tree": tree.name, "rows": R, "head_size": D},
        dtype=setting.dtype,
        work={
            "forward": Work(4 * flops, once, "FLOPs 4 P Hq D"),
            "backward": Work(10 * flops, 2 * once, "FLOPs 10 P Hq D"),
            "full": Work(14 * flops, 3 * once, "FLOPs 14 P Hq D"),
        },
        baseline=SDPA,
        providers=ours("tree_attention", lambda q, k, v: tree_attention(q, k, v, tree.intervals)[0], q, k, v)
        | {
            SDPA: unrolled_sdpa(tree, q, k, v),
            "torch SDPA, dense mask": partial(masked_sdpa, tree, q, k, v),
            "FlexAttention": partial(flex_attention, setting, tree, q, k, v),
            "flash-attn, unrolled": partial(flash_attention, setting, tree, q, k, v),
            "xformers, unrolled": partial(xformers_attention, setting, tree, q, k, v),
        },
    )


def unrolled_sdpa(tree: Tree, q: Tensor, k: Tensor, v: Tensor) -> Make:
    """torch SDPA on every sequence, those of equal length in one call; what PrefixGrouper-style repeats cost.

    Inputs lie as SDPA likes them, [sequences, heads, length, D], so that repeating rows is not timed.
    """
    inputs = [_leaf(x[rows].transpose(1, 2)) for rows in tree.unrolled for x in (q, k, v)]

    def run(*tensors: Tensor) -> list[Tensor]:
        batches = zip(tensors[::3], tensors[1::3], tensors[2::3], strict=True)
        return [scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) for q, k, v in batches]

    return plain(run, *inputs)


def masked_sdpa(tree: Tree, q: Tensor, k: Tensor, v: Tensor) -> Program:
    if tree.rows**2 > DENSE_MASK_PAIRS:
        raise UnavailableError(f"a mask of {tree.rows} x {tree.rows} is too large")
    visible = tree.intervals.visible()
    inputs = tuple(_leaf(x.transpose(0, 1)[None]) for x in (q, k, v))
    return Program(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True), inputs
    )


def flex_attention(setting: Setting, tree: Tree, q: Tensor, k: Tensor, v: Tensor) -> Program:
    require_compiler(setting)
    flex = library("torch.nn.attention.flex_attention")
    enter, first, last = tree.intervals.query_enter, tree.intervals.key_enter, tree.intervals.key_exit

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (first[j] <= enter[i]) & (enter[i] < last[j])

    mask = flex.create_block_mask(sees, None, None, tree.rows, tree.rows, device=setting.device)
    attend = torch.compile(flex.flex_attention, dynamic=False)
    inputs = tuple(_leaf(x.transpose(0, 1)[None]) for x in (q, k, v))
    if setting.device.type == "cpu":
        for x in inputs:
            x.requires_grad_(False)  # its backward exists on CUDA only, and it refuses to go without
    return Program(lambda q, k, v: attend(q, k, v, block_mask=mask, enable_gqa=True), inputs)


def flash_attention(setting: Setting, tree: Tree, q: Tensor, k: Tensor, v: Tensor) -> Program:
    cuda_only(setting)
    attend = library("flash_attn").flash_attn_varlen_func
    rows, lengths = _packed(tree)
    ends = torch.tensor(lengths, device=setting.device).cumsum(0, dtype=torch.int32)
    starts, longest = torch.nn.functional.pad(ends, (1, 0)), max(lengths)
    inputs = tuple(_leaf(x[rows]) for x in (q, k, v))
    return Program(lambda q, k, v: attend(q, k, v, starts, starts, longest, longest, causal=True), inputs)


def xformers_attention(setting: Setting, tree: Tree, q: Tensor, k: Tensor, v: Tensor) -> Program:
    cuda_only(setting)
    ops = library("xformers.ops")
    rows, lengths = _packed(tree)
    bias = ops.fmha.attn_bias.BlockDiagonalCausalMask.from_seqlens(lengths)
    group = q.shape[1] // k.shape[1]
    repeated = (q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1))
    inputs = tuple(_leaf(x[rows][None]) for x in repeated)
    return Program(lambda q, k, v: ops.memory_efficient_attention(q, k, v, attn_bias=bias), inputs)


def _packed(tree: Tree) -> tuple[Tensor, list[int]]:
    """Rows of all unrolled sequences one after the other, and the lengths of the sequences."""
    lengths = [batch.shape[1] for batch in tree.unrolled for _ in range(batch.shape[0])]
    return torch.cat([batch.flatten() for batch in tree.unrolled]), lengths


def _leaf(x: Tensor) -> Tensor:
    return x.detach().contiguous().requires_grad_()
