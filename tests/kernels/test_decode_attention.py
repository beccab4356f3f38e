import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from sprout.kernels import decode_attention, use_backend


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def caches(pages, page, heads, D, dtype=torch.float32):
    return [random(pages, page, heads, D, seed=i, dtype=dtype) for i in (1, 2)]


def batch(lengths, *, heads=(4, 2), D=16, page=4, max_pages=6, dtype=torch.float32):
    """One sequence per length on pages in random order; table entries that lengths do not reach are -1."""
    S = len(lengths)
    order = torch.randperm(S * max_pages + 2, generator=torch.Generator().manual_seed(3))
    table = order[: S * max_pages].view(S, max_pages).int()
    length = torch.tensor(lengths, dtype=torch.int32)
    table[torch.arange(max_pages)[None] * page >= length[:, None]] = -1
    q = random(S, heads[0], D, dtype=dtype)
    return [
        q,
        *caches(len(order), page, heads[1], D, dtype),
        table,
        torch.arange(S, dtype=torch.int32),
        length,
    ]


def check(assert_accurate, backend, arguments, scale=None):
    *tensors, table, sequence, length = arguments
    op = lambda q, k, v: decode_attention(q, k, v, table, sequence, length, scale)  # noqa: E731
    assert_accurate("decode_attention", backend, op, tensors, frozen=(0, 1, 2))


@pytest.mark.parametrize("D", [1, 7, 8, 16, 24, 32, 40, 64, 80, 96, 128, 256])
def test_head_sizes(assert_accurate, cpu_path, D):
    backend, dtype = cpu_path
    check(assert_accurate, backend, batch([5, 24, 1], D=D, dtype=dtype))


@pytest.mark.parametrize("heads", [(1, 1), (2, 1), (3, 1), (5, 1), (6, 2), (9, 3), (4, 4), (7, 7)], ids=str)
def test_head_counts(assert_accurate, cpu_path, heads):
    backend, dtype = cpu_path
    check(assert_accurate, backend, batch([5, 24, 1, 13], heads=heads, dtype=dtype))


@pytest.mark.parametrize("page", [1, 3, 4, 5, 16, 300])
def test_lengths_around_every_page(assert_accurate, cpu_backend, page):
    near = {0, 1, 2, 7, 8, 9, page - 1, page, page + 1, 2 * page, 3 * page - 1, 3 * page}
    lengths = sorted(n for n in near if n <= 3 * page)
    check(assert_accurate, cpu_backend, batch(lengths, page=page, max_pages=3))


def test_long_sequences(assert_accurate, cpu_backend):
    lengths = [255, 256, 257, 1000, 1024]
    check(assert_accurate, cpu_backend, batch(lengths, page=16, max_pages=64), scale=0.7)


@pytest.mark.parametrize("magnitude", [1e-3, 30.0, 1e4])
def test_magnitudes_and_peaked_softmax(assert_accurate, cpu_backend, magnitude):
    arguments = batch([3, 24, 17])
    arguments[0] = arguments[0] * magnitude
    check(assert_accurate, cpu_backend, arguments)


def test_float64(assert_accurate):
    check(assert_accurate, "torch", batch([5, 24, 1], dtype=torch.float64))


def test_no_visible_position_gives_zero(cpu_backend):
    arguments = batch([0, 3, 0])
    with use_backend(decode_attention=cpu_backend):
        out = decode_attention(*arguments)
        nothing = decode_attention(*batch([0, 0]))
    assert (out[[0, 2]] == 0).all() and (out[1] != 0).all() and (nothing == 0).all()


def test_empty_batch(cpu_backend):
    q, k, v, table, sequence, length = batch([3])
    with use_backend(decode_attention=cpu_backend):
        assert decode_attention(q[:0], k, v, table, sequence[:0], length[:0]).shape == (0, 4, 16)


def test_garbage_beyond_the_length_is_not_read(cpu_backend):
    arguments = batch([5, 18], max_pages=5)
    with use_backend(decode_attention=cpu_backend):
        clean = decode_attention(*arguments)
        table, length = arguments[3], arguments[5]
        reached = torch.zeros(arguments[1].shape[:2], dtype=torch.bool)
        for s, n in enumerate(length.tolist()):
            for position in range(n):
                reached[table[s, position // 4], position % 4] = True
        for cache in arguments[1:3]:
            cache[~reached] = torch.nan
        assert torch.equal(decode_attention(*arguments), clean)


def test_nan_stays_in_its_row_and_head(cpu_backend):
    arguments = batch([5, 18, 9])
    with use_backend(decode_attention=cpu_backend):
        clean = decode_attention(*arguments)
        arguments[0][1, 2] = torch.nan
        out = decode_attention(*arguments)
    assert out[1, 2].isnan().all()
    out[1, 2] = clean[1, 2]
    assert torch.equal(out, clean)


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("heads", [(1, 1), (5, 1), (6, 2), (4, 4)], ids=str)
def test_a_row_depends_on_no_other(cpu_backend, heads):
    lengths = [300, 1, 0, 17, 511, 512, 257, 256, 40, 3]
    q, k, v, table, sequence, length = batch(lengths, heads=heads, D=80, page=16, max_pages=32)
    with use_backend(decode_attention=cpu_backend):
        together = decode_attention(q, k, v, table, sequence, length)
        for rows in ([0], [4], [2], [8, 3], list(range(9, -1, -1)), [0, 0, 0], list(range(5))):
            some = decode_attention(q[rows], k, v, table, sequence[rows], length[rows])
            assert torch.equal(some, together[rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spans", [[(300, 300), (1, 1), (17, 17), (511, 511)], [(9, 9), (20, 150)]], ids=str)
def test_thread_count_changes_no_bit(spans, dtype):
    arguments = prompt(spans, page=16, D=64, dtype=dtype)
    before, results = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(decode_attention(*arguments))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_rows_of_a_prompt_equal_causal_attention(cpu_backend):
    n, page = 21, 4
    q, k, v = random(n, 4, 16), random(24, 2, 16, seed=1), random(24, 2, 16, seed=2)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    k_pages, v_pages = (
        torch.empty(6, page, 2, 16).index_copy_(0, order, x.view(6, page, 2, 16)) for x in (k, v)
    )
    rows = torch.zeros(n, dtype=torch.int32), torch.arange(1, n + 1, dtype=torch.int32)
    with use_backend(decode_attention=cpu_backend):
        out = decode_attention(q, k_pages, v_pages, order.int()[None], *rows)
    heads = (x[:n].transpose(0, 1)[None] for x in (q, k, v))
    expected = scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
    torch.testing.assert_close(out, expected)


def prompt(spans, *, heads=(4, 2), D=16, page=4, dtype=torch.float32):
    """For each span (first, last) one sequence with rows of lengths first..last."""
    last = max(stop for _, stop in spans)
    q, k, v, table, _, _ = batch([last] * len(spans), D=D, heads=heads, page=page, max_pages=-(-last // page))
    sequence = torch.cat([torch.full((n - m + 1,), s) for s, (m, n) in enumerate(spans)]).int()
    length = torch.cat([torch.arange(m, n + 1) for m, n in spans]).int()
    q = random(len(length), heads[0], D, dtype=dtype)
    return [q, k.to(dtype), v.to(dtype), table, sequence, length]


@pytest.fixture(
    params=[("native", torch.float32), ("native", torch.bfloat16), ("torch", torch.float32)],
    ids=["native-float32", "native-bfloat16", "torch-float32"],
)
def prompt_path(request):
    """Backends that are fast enough for prompts of hundreds of rows; Triton's interpreter is not."""
    if request.param[0] == "native":
        pytest.importorskip("sprout.kernels._native", reason="not built", exc_type=ImportError)
    return request.param


# Native code takes rows in blocks of 96 query heads and tiles of 6, keys in chunks of 128 and panels of 16.
@pytest.mark.parametrize("spans", [[(15, 18)], [(127, 130)], [(1, 33)], [(250, 258)]], ids=str)
@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (7, 1)], ids=str)
def test_prompts_at_the_edges_of_tiles(assert_accurate, prompt_path, spans, heads):
    backend, dtype = prompt_path
    check(assert_accurate, backend, prompt(spans, heads=heads, dtype=dtype))


@pytest.mark.parametrize("rows", [95, 96, 97, 200])
@pytest.mark.parametrize("heads", [(1, 1), (14, 2), (120, 1)], ids=str)
def test_prompts_at_the_edges_of_blocks(assert_accurate, prompt_path, rows, heads):
    backend, dtype = prompt_path
    check(assert_accurate, backend, prompt([(3, rows + 2)], heads=heads, page=16, dtype=dtype))


@pytest.mark.parametrize("D", [1, 7, 8, 16, 20, 40, 64, 80, 128, 256])
def test_prompts_and_single_rows_of_every_head_size(assert_accurate, prompt_path, D):
    backend, dtype = prompt_path
    check(assert_accurate, backend, prompt([(33, 33), (5, 5), (12, 30), (1, 9), (17, 17)], D=D, dtype=dtype))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("heads", [(1, 1), (5, 1), (6, 2), (4, 4)], ids=str)
def test_a_row_of_a_prompt_depends_on_no_other(prompt_path, heads):
    backend, dtype = prompt_path
    q, k, v, table, sequence, length = prompt(
        [(140, 140), (120, 150), (1, 70)], heads=heads, D=40, page=16, dtype=dtype
    )
    backwards = list(range(len(q) - 1, -1, -1))
    with use_backend(decode_attention=backend):
        together = decode_attention(q, k, v, table, sequence, length)
        for rows in ([0], [20], [5, 40], [1, 2, 3], [31, 1, 31], list(range(7, 60)), backwards):
            some = decode_attention(q[rows], k, v, table, sequence[rows], length[rows])
            assert torch.equal(some, together[rows])


def test_what_another_row_of_the_prompt_sees_is_not_read(cpu_backend):
    q, k, v, table, sequence, length = prompt([(10, 21)])
    with use_backend(decode_attention=cpu_backend):
        clean = decode_attention(q, k, v, table, sequence, length)
        for cache in (k, v):
            cache[table[0, 4], 0] = torch.nan  # position 16
        out = decode_attention(q, k, v, table, sequence, length)
    assert torch.equal(out[:7], clean[:7]) and out[7:].isnan().all()


def test_sequences_may_share_pages(cpu_backend):
    q, k, v, _, _, _ = batch([8, 8])
    q = q[:1].expand(2, -1, -1)
    table = torch.tensor([[3, 0, -1], [3, 0, 5]], dtype=torch.int32)
    two = torch.arange(2, dtype=torch.int32)
    with use_backend(decode_attention=cpu_backend):
        out = decode_attention(q, k, v, table, two, torch.full((2,), 7, dtype=torch.int32))
    assert torch.equal(out[0], out[1])


def test_strided_inputs(assert_accurate, cpu_backend):
    q, k, v, table, sequence, length = batch([5, 24, 1, 13])
    q = random(4, 16, 8)[:, :, ::2].transpose(1, 2)
    k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    table, rows = torch.stack([table, table], dim=2)[:, :, 0], torch.stack([sequence, length], dim=1)
    check(assert_accurate, cpu_backend, [q, k, v, table, rows[:, 0], rows[:, 1]])
    check(assert_accurate, cpu_backend, [q[:1].expand(4, -1, -1), k, v, table, sequence, length])


@pytest.mark.parametrize("backend", ["fast", "reference"])
def test_out_of_range_is_an_error(cpu_backend, backend):
    backend = cpu_backend if backend == "fast" else backend
    good = dict(zip(("q", "k", "v", "table", "sequence", "length"), batch([5, 24]), strict=True))
    pages = good["k"].shape[0]
    for name, index, value, message in (
        ("sequence", (1,), 2, r"sequence must be in \[0, 2\)"),
        ("sequence", (0,), -1, "sequence must be in"),
        ("length", (1,), 25, r"length must be in \[0, 24\]"),
        ("length", (1,), -1, "length must be in"),
        ("table", (0, 1), -1, rf"pages in use must be in \[0, {pages}\)"),
        ("table", (1, 5), pages, "pages in use must be in"),
    ):
        bad = {k: v.clone() for k, v in good.items()}
        bad[name][index] = value
        with use_backend(decode_attention=backend), pytest.raises(ValueError, match=message):
            decode_attention(*bad.values())


def test_ill_shaped_inputs_are_errors():
    q, k, v, table, sequence, length = batch([5, 24])
    for arguments, message in (
        ((q[0], k, v, table, sequence, length), "q must be"),
        ((q, k, v[:1], table, sequence, length), "q must be"),
        ((q[:, :, :3], k, v, table, sequence, length), "q must be"),
        ((q[:, :3], k, v, table, sequence, length), "3 query heads are no multiple of 2"),
        ((q, k.double(), v, table, sequence, length), "one dtype"),
        ((q, k, v, table[0], sequence, length), "page_table must be"),
        ((q, k, v, table, sequence[:1], length), "page_table must be"),
        ((q, k, v, table.long(), sequence, length), "must be int32"),
    ):
        with pytest.raises(ValueError, match=message):
            decode_attention(*arguments)
