"""Block shapes of `selected_logprob`'s Triton kernels, with warps and pipeline stages."""

from sprout.kernels.launch import Blocks, Table


def _blocks(warps: int, stages: int, **sizes: int) -> Blocks:
    return Blocks(sizes, warps, stages)


# Rows by kernel, element size in bytes, and for "forward" the kind of scoring: "few" tokens as in a short
# turn, "many", many with their "entropy", which takes more registers, or also with their logits "kept".
# Those of "entropy" also serve H up to 64 or beside the multiples of 64, which take more registers too. All
# but few are "unaligned" where H is no multiple of 16: elements are loaded one by one, each from a pointer in
# registers, so the steps along H are short.
SM80 = {
    ("forward", 2, "few"): _blocks(4, 4, BLOCK_M=16, BLOCK_V=128, BLOCK_H=64, CHUNK=1024, GROUP=16),
    ("forward", 2, "many"): _blocks(8, 3, BLOCK_M=128, BLOCK_V=128, BLOCK_H=64, CHUNK=2048, GROUP=16),
    ("forward", 2, "entropy"): _blocks(8, 4, BLOCK_M=128, BLOCK_V=128, BLOCK_H=32, CHUNK=2048, GROUP=16),
    ("forward", 2, "kept"): _blocks(8, 4, BLOCK_M=128, BLOCK_V=128, BLOCK_H=32, CHUNK=2048, GROUP=16),
    ("forward", 2, "unaligned"): _blocks(8, 4, BLOCK_M=128, BLOCK_V=128, BLOCK_H=16, CHUNK=2048, GROUP=16),
    ("forward", 4, "few"): _blocks(4, 2, BLOCK_M=16, BLOCK_V=64, BLOCK_H=16, CHUNK=1024, GROUP=16),
    ("forward", 4, "many"): _blocks(8, 2, BLOCK_M=64, BLOCK_V=64, BLOCK_H=32, CHUNK=2048, GROUP=16),
    ("forward", 4, "entropy"): _blocks(8, 2, BLOCK_M=64, BLOCK_V=64, BLOCK_H=32, CHUNK=2048, GROUP=16),
    ("forward", 4, "kept"): _blocks(4, 2, BLOCK_M=64, BLOCK_V=64, BLOCK_H=16, CHUNK=2048, GROUP=16),
    ("forward", 4, "unaligned"): _blocks(4, 2, BLOCK_M=64, BLOCK_V=64, BLOCK_H=16, CHUNK=2048, GROUP=16),
    ("d_logits", 2): _blocks(8, 3, BLOCK_M=128, BLOCK_V=128, BLOCK_H=64, GROUP=16),
    ("d_logits", 4): _blocks(4, 2, BLOCK_M=64, BLOCK_V=64, BLOCK_H=32, GROUP=16),
    ("d_rows", 2): _blocks(8, 2, BLOCK_M=64, BLOCK_V=64, BLOCK_H=64),
    ("d_rows", 4): _blocks(8, 1, BLOCK_M=32, BLOCK_V=32, BLOCK_H=32),
    ("d_weight", 2): _blocks(8, 2, BLOCK_M=64, BLOCK_V=64, BLOCK_H=64),
    ("d_weight", 4): _blocks(8, 1, BLOCK_M=32, BLOCK_V=32, BLOCK_H=16),
}
SM90 = SM80 | {
    ("forward", 2, "many"): _blocks(8, 3, BLOCK_M=128, BLOCK_V=256, BLOCK_H=64, CHUNK=2048, GROUP=16),
    ("forward", 2, "entropy"): _blocks(8, 4, BLOCK_M=128, BLOCK_V=128, BLOCK_H=64, CHUNK=2048, GROUP=16),
    ("forward", 4, "entropy"): _blocks(8, 2, BLOCK_M=64, BLOCK_V=64, BLOCK_H=16, CHUNK=2048, GROUP=16),
    ("d_logits", 2): _blocks(8, 3, BLOCK_M=128, BLOCK_V=256, BLOCK_H=64, GROUP=16),
}
TINY = dict(BLOCK_M=16, BLOCK_V=32, BLOCK_H=16, CHUNK=64, GROUP=2)
TABLE: Table = {
    "sm80": SM80,
    "sm90": SM90,
    "interpreter": {row: _blocks(1, 1, **{name: TINY[name] for name in SM80[row].sizes}) for row in SM80},
}
