import math
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout.kernels import sample, use_backend

NATIVE = any(find_spec(f"sprout.kernels._native_{isa}") for isa in ("baseline", "avx2", "avx512"))


@pytest.fixture(params=["native", "torch"])
def fast(request):
    """`sample` on each fast backend; Triton is compared token by token in tests/kernels/triton."""
    if request.param == "native" and not NATIVE:
        pytest.skip("the native kernels are not built")
    with use_backend(sample=request.param):
        yield request.param


@pytest.fixture(params=["fast", "reference"])
def backend(request, fast):
    return fast if request.param == "fast" else request.param


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def keys(count, seed=0):
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=torch.Generator().manual_seed(seed))


def uniform(key, position):
    return import_module("sprout.kernels.sample.torch").uniform(key, position)


def draw(logits, count, temperature=1.0, top_p=1.0):
    """Tokens of one row of logits under `count` keys."""
    token, _ = sample(
        logits.expand(count, -1),
        temperature=temperature,
        top_p=top_p,
        key=torch.arange(count),
        position=torch.zeros(count, dtype=torch.int64),
    )
    return token


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


def likely_limit(degrees):
    """What a chi-square of so many degrees of freedom exceeds once in 30,000 draws (Wilson-Hilferty)."""
    return degrees * (1 - 2 / (9 * degrees) + 4 * math.sqrt(2 / (9 * degrees))) ** 3


def test_generator_is_splitmix64():
    """Published outputs of SplitMix64 seeded with 0 and with 1234567."""
    reference = import_module("sprout.kernels.sample.reference")
    for seed, outputs in (
        (0, (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)),
        (1234567, (6457827717110365317, 3203168211198807973, 9817491932198370423)),
    ):
        for i, expected in enumerate(outputs):
            assert reference._mix(seed + (i + 1) * reference.GAMMA) == expected


def test_numbers_equal_the_reference():
    reference = import_module("sprout.kernels.sample.reference")
    edges = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63)])
    key, position = torch.cartesian_prod(
        torch.cat([edges, keys(20)]), torch.tensor([0, 1, 2**40, 2**63 - 1])
    ).T
    expected = [reference.uniform(k, p) for k, p in zip(key.tolist(), position.tolist(), strict=True)]
    assert uniform(key, position).tolist() == expected


@pytest.mark.parametrize(
    ("key", "position"),
    [
        (torch.tensor(12345), torch.arange(100_000)),
        (torch.arange(100_000), torch.tensor(0)),
        (torch.arange(100_000) << 32, torch.tensor(7)),
        (torch.arange(100_000), torch.arange(100_000)),
    ],
    ids=["positions", "keys", "high bits of keys", "both"],
)
def test_numbers_are_uniform_and_uncorrelated(key, position):
    u = uniform(key, position)
    assert u.min() >= 0 and u.max() < 1 and len(u.unique()) == len(u)
    for scale in (1, 2**20):
        bins = (u * scale % 1 * 256).long().bincount(minlength=256)
        assert chi_square(bins, len(u) / 256) < likely_limit(255)
    pairs = ((u[:-1] * 16).long() * 16 + (u[1:] * 16).long()).bincount(minlength=256)
    assert chi_square(pairs, (len(u) - 1) / 256) < likely_limit(255)
    for other in (uniform(key + 1, position), uniform(key, position + 1), uniform(key ^ (1 << 62), position)):
        assert abs(float(torch.corrcoef(torch.stack([u, other]))[0, 1])) < 4.5 / math.sqrt(len(u))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_frequencies_follow_the_softmax(temperature, fast):
    logits, count = random(1, 30), 20_000
    expected = torch.softmax(logits[0].double() / temperature, 0) * count
    observed = draw(logits, count, temperature).bincount(minlength=30)
    kept = expected > 5
    assert chi_square(observed[kept], expected[kept]) < likely_limit(int(kept.sum()))


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_nucleus(top_p, fast):
    logits = random(1, 30) * 2
    probabilities, order = torch.softmax(logits[0].double(), 0).sort(descending=True)
    size = int((probabilities.cumsum(0) < top_p).sum()) + 1
    observed = draw(logits, 20_000, top_p=top_p).bincount(minlength=30)[order]
    assert (observed[size:] == 0).all() and observed[0] > 0
    kept = probabilities[:size] / probabilities[:size].sum() * 20_000
    often = kept > 5
    assert size == 1 or chi_square(observed[:size][often], kept[often]) < likely_limit(size)


def test_nucleus_breaks_ties_by_token_id(fast):
    assert set(draw(torch.zeros(1, 8), 500, top_p=0.5).tolist()) == {0, 1, 2, 3}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 2.0, 8.0]))
def test_equals_the_reference(B, V, seed, spread):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(B, V, generator=generator)
    logits[:, 1:][torch.rand(B, V - 1, generator=generator) < 0.2] = -torch.inf
    temperature = torch.rand(B, generator=generator).mul(2.2).sub(0.2).clamp(min=0)
    top_p = torch.rand(B, generator=generator).mul(1.3).clamp(0.01, 1)
    arguments = dict(temperature=temperature, top_p=top_p, key=keys(B, seed), position=torch.arange(B))
    with use_backend(sample="reference"):
        expected, expected_logprob = sample(logits, **arguments)
    for backend in ("torch", "native") if NATIVE else ("torch",):
        with use_backend(sample=backend):
            token, logprob = sample(logits, **arguments)
        assert torch.equal(token, expected)
        torch.testing.assert_close(logprob, expected_logprob, rtol=0, atol=2e-6)
    assert logits.gather(1, expected[:, None]).isfinite().all()


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("V", [1, 7, 300, 5000])
def test_a_row_does_not_depend_on_the_batch(V, fast):
    B = 24
    logits, temperature = 4 * random(B, V), torch.linspace(0, 2, B)
    top_p = torch.linspace(0.3, 1.2, B).clamp(max=1)
    columns = dict(temperature=temperature, top_p=top_p, key=keys(B), position=torch.arange(B))
    token, logprob = sample(logits, **columns)
    for rows in ([0], [5], [B - 1], [3, 20], list(range(B - 1, -1, -1)), list(range(17, B))):
        some = sample(logits[rows], **{name: value[rows] for name, value in columns.items()})
        assert torch.equal(some[0], token[rows]) and torch.equal(some[1], logprob[rows])


def test_greedy(backend):
    logits = random(5, 20)
    logits[3, [4, 9]] = 50.0
    arguments = dict(key=keys(5), position=torch.arange(5))
    with use_backend(sample=backend):
        token, logprob = sample(logits, temperature=0.0, **arguments)
        mixed, _ = sample(logits, temperature=torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0]), top_p=0.9, **arguments)
    assert torch.equal(token, logits.argmax(1)) and token[3] == 4
    torch.testing.assert_close(logprob, torch.log_softmax(logits, 1).gather(1, token[:, None])[:, 0])
    assert torch.equal(mixed[[0, 2, 3]], token[[0, 2, 3]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_logprob_is_of_the_whole_distribution(backend, dtype):
    if backend == "native" and dtype == torch.float64:
        pytest.skip("the native kernel takes float32 and less")
    logits = random(20, 50).to(dtype)
    with use_backend(sample=backend):
        token, logprob = sample(logits, temperature=0.7, top_p=0.3, key=keys(20), position=torch.arange(20))
    whole = torch.log_softmax(logits.float() / 0.7, 1).gather(1, token[:, None])[:, 0]
    assert logprob.dtype == torch.float32 and token.dtype == torch.int64
    torch.testing.assert_close(logprob, whole)


def test_key_and_position_both_matter_and_repeat(fast):
    logits, zeros = torch.zeros(1, 1000).expand(64, -1), torch.zeros(64, dtype=torch.int64)
    by_key, _ = sample(logits, temperature=1.0, key=torch.arange(64), position=zeros)
    by_position, _ = sample(logits, temperature=1.0, key=zeros, position=torch.arange(64))
    again, _ = sample(logits, temperature=1.0, key=torch.arange(64), position=zeros)
    assert torch.equal(by_key, again)
    assert len(by_key.unique()) > 50 and len(by_position.unique()) > 50
    assert (by_key == by_position).sum() < 5


def test_forbidden_tokens_are_never_drawn(fast):
    logits = torch.full((1, 10), -torch.inf)
    logits[0, [2, 7]] = torch.tensor([0.0, 1.0])
    assert set(draw(logits, 300).tolist()) == {2, 7}
    assert set(draw(logits, 300, top_p=0.5).tolist()) == {7}
    assert draw(logits[:, 7:8], 3).tolist() == [0, 0, 0]


def test_very_unlikely_tokens_and_large_logits(backend):
    logits = torch.tensor([[1e4, -1e4, 0.0], [-3e38, -3e38, -3e38], [3e38, 0.0, 0.0]])
    with use_backend(sample=backend):
        token, logprob = sample(logits, temperature=1.0, top_p=0.99, key=keys(3), position=torch.arange(3))
    assert token[0] == 0 and token[2] == 0 and logprob.isfinite().all()


def test_strided_logits_and_an_empty_batch(fast):
    logits, arguments = random(60, 8), dict(temperature=0.8, key=keys(8), position=torch.arange(8))
    assert torch.equal(sample(logits.T, **arguments)[0], sample(logits.T.contiguous(), **arguments)[0])
    none = torch.empty(0, dtype=torch.int64)
    token, logprob = sample(torch.empty(0, 9), temperature=1.0, top_p=0.5, key=none, position=none)
    assert token.shape == logprob.shape == (0,)


@pytest.mark.parametrize("bad", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]], ids=str)
def test_rows_without_a_distribution_are_errors(bad):
    logits = torch.stack([torch.zeros(2), torch.tensor(bad)])
    with pytest.raises(ValueError, match="finite maximum"):
        sample(logits, temperature=1.0, key=keys(2), position=torch.arange(2))


def test_bad_arguments_are_errors():
    good = dict(temperature=1.0, top_p=1.0, key=keys(2), position=torch.arange(2))
    for name, value, message in (
        ("temperature", -0.1, "temperature must be >= 0, not -0.1"),
        ("temperature", math.nan, "temperature must be >= 0"),
        ("temperature", torch.tensor([1.0, -1.0]), "every temperature must be >= 0"),
        ("temperature", torch.ones(3), r"temperature must be a number or \[2\]"),
        ("top_p", 0.0, r"top_p must be in \(0, 1\]"),
        ("top_p", torch.tensor([0.5, 1.5]), r"every top_p must be in \(0, 1\]"),
        ("key", torch.zeros(2), r"key must be int64 \[2\]"),
        ("position", torch.arange(3), r"position must be int64 \[2\]"),
    ):
        with pytest.raises(ValueError, match=message):
            sample(torch.zeros(2, 5), **good | {name: value})
    with pytest.raises(ValueError, match="logits must be"):
        sample(torch.zeros(2, 0), **good)
