"""Attention of single query rows over paged keys and values.

Idea. Generation reads every key and value once per new token, so the op is bound by memory: read them
once per key head, for all its query heads together, straight from their pages. Long sequences are cut
into splits of a fixed number of positions, so that one sequence can fill a GPU, and the splits are joined
in rising order. The cuts depend on positions alone, never on the batch or the number of free processors:
a row has the same bits in any company, which is what makes sampled tokens independent of scheduling.

Memory. No gathered copy of all keys or values in the native and Triton paths. Triton keeps the sums of all
splits in a workspace of at most 64 MiB (more only if a single row needs it) and takes the rows in chunks
to stay below.

FLOPs. 4 Hq D per visible position, for 4 Hkv D bytes of bfloat16 keys and values: 1 FLOP per byte and
query head of a group. In the Triton path the rows of a prompt each read the keys again; a long prompt
costs more than a tiled prefill would.

Numerics. Online softmax in float32, in units of log 2 in Triton; the weights are rounded to the cache's
dtype before they meet the values on tensor cores. The Triton kernels are tested in Triton's interpreter
in float32 and float16 and compiled ahead of time for sm_80 and sm_90; they have not run on a GPU.

Native CPU. Neighbouring rows of one sequence, 96 with their query heads, are a block and read the keys
once. Positions come in chunks of 128: the keys are transposed into panels of 16, so that scores need no
sums across lanes; blocks of up to 4 rows (single tokens) transpose in registers and store no panel. float32
values are read in their pages (copied if bfloat16, or if D is no multiple of 16). Tiles of 6 rows (AVX2)
keep their sums in registers between the chunk's online softmax and its values. A row's chunks and order of
summation do not depend on its block, and it skips values beyond its length instead of weighing them with 0,
so single rows and prompts have the same bits and a NaN stays with the rows that see it. bfloat16 is computed
in float32. Scratch is (2 x 96 + 2 x 128) D floats per thread, more if a key head has more than 96 query
heads. Keys and values are prefetched only 4 to 8 positions ahead: their distance is a power of two, so that
few of them fit into the first cache.

Measured on one of two Zen 1 cores (AVX2, float32, CPU time, median, beside other work), in ms, one row at a
time -> this; pages of 16:

    heads, D               (8, 8), 64      (8, 4), 16      (14, 2), 64     (32, 8), 128
    16 rows of 512                                                         16.2 -> 15.2
    64 rows of 512         21.7 -> 20.2    9.8 -> 5.2      14.3 -> 11.1
    16 rows of 1,024       12.6 -> 11.9    5.5 -> 2.7      7.5 -> 6.0
    prompt of 256          6.4 -> 3.9      3.6 -> 1.9      8.8 -> 6.0
    last 64 of 1,024       15.0 -> 7.2     7.0 -> 2.9      17.3 -> 10.0
    last 256 of 2,048      331 -> 52       52 -> 21        143 -> 80

AVX-512 and baseline builds: not timed.
"""

from torch import Tensor, int32

from sprout.kernels.dispatch import resolve

__all__ = ["decode_attention"]


def decode_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    sequence: Tensor,
    length: Tensor,
    scale: float | None = None,
) -> Tensor:
    """Attention of B query rows, each over the first `length` positions of its own sequence.

    Row b of head h attends to positions j < length[b] of sequence s = sequence[b], whose keys lie at
    `k_pages[page_table[s, j // page], j % page, h // (Hq / Hkv)]` (paged KV cache as in vLLM, arXiv
    2309.06180):

        out[b, h] = softmax_j(scale * q[b, h] . k_j) v_j

    Rows of one sequence may come together, so the tokens of a prompt chunk are rows of increasing length next
    to the decode rows of other sequences. A row's result depends on no other row, nor on the number of
    threads.

    Args:
        q: [B, Hq, D], Hq a multiple of Hkv. k_pages: [P, page, Hkv, D], same dtype and device as q. v_pages:
        [P, page, Hkv, D]. page_table: [S, max_pages] int32, page ids in [0, P) as far as lengths reach;
        entries beyond are not read. sequence: [B] int32 in [0, S). length: [B] int32 in [0, max_pages *
        page]. A row of length 0 gives 0. scale: factor of the scores; None is D ** -0.5.

    Returns:
        [B, Hq, D] in q's dtype, summed in float32 (float64 for float64). Not differentiable.

    Raises:
        ValueError: shapes or dtypes that do not fit; on the CPU also a sequence, length or page out of range.
    """
    if q.ndim != 3 or k_pages.ndim != 4 or k_pages.shape != v_pages.shape or q.shape[2] != k_pages.shape[3]:
        raise ValueError(
            f"decode_attention: q must be [B, Hq, D] and k_pages, v_pages [P, page, Hkv, D], "
            f"not {list(q.shape)}, {list(k_pages.shape)}, {list(v_pages.shape)}"
        )
    if k_pages.shape[2] == 0 or q.shape[1] % k_pages.shape[2]:
        raise ValueError(
            f"decode_attention: {q.shape[1]} query heads are no multiple of {k_pages.shape[2]} key heads"
        )
    if not q.dtype == k_pages.dtype == v_pages.dtype:
        raise ValueError("decode_attention: q, k_pages and v_pages must have one dtype")
    if page_table.ndim != 2 or sequence.shape != q.shape[:1] or length.shape != q.shape[:1]:
        raise ValueError("decode_attention: page_table must be [S, max_pages], sequence and length [B]")
    if not page_table.dtype == sequence.dtype == length.dtype == int32:
        raise ValueError("decode_attention: page_table, sequence and length must be int32")
    scale = q.shape[2] ** -0.5 if scale is None else scale
    out: Tensor = resolve("decode_attention", q)(q, k_pages, v_pages, page_table, sequence, length, scale)
    return out
