"""sample's Triton kernel in the interpreter, token by token against the reference, and compiled."""

import math
from importlib import import_module

import pytest
import torch

from sprout.kernels import sample, use_backend

kernels = import_module("sprout.kernels.sample.triton")


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def keys(count, seed=0):
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=torch.Generator().manual_seed(seed))


def assert_equals_the_reference(logits, **arguments):
    with use_backend(sample="reference"):
        expected, expected_logprob = sample(logits, **arguments)
    with use_backend(sample="triton"):
        token, logprob = sample(logits, **arguments)
    assert torch.equal(token, expected)
    torch.testing.assert_close(logprob, expected_logprob, rtol=0, atol=2e-6)
    return token


@pytest.mark.parametrize(
    ("V", "spread", "dtype"),
    [
        (1, 1.0, torch.float32),
        (127, 8.0, torch.float16),
        (128, 2.0, torch.float32),
        (129, 0.0, torch.float16),
        (300, 2.0, torch.float32),
    ],
    ids=str,
)
def test_tokens_equal_the_reference(interpreter, V, spread, dtype):
    """Rows greedy, with the whole distribution, with a nucleus; a fifth of the tokens are forbidden."""
    B = 5
    logits = spread * random(B, V, seed=V)
    logits[:, 1:][random(B, V - 1, seed=V + 1) < -0.84] = -torch.inf
    temperature = torch.tensor([0.0, 0.5, 1.7, 1.0, 0.8])
    top_p = torch.tensor([1.0, 1.0, 1.0, 0.3, 0.999])
    token = assert_equals_the_reference(
        logits.to(dtype), temperature=temperature, top_p=top_p, key=keys(B, V), position=torch.arange(B)
    )
    assert logits.gather(1, token[:, None]).isfinite().all()


@pytest.mark.parametrize("position", [0, 2**63 - 1])
def test_random_numbers_of_extreme_keys(interpreter, position):
    """1,000 equally likely tokens tell the numbers apart."""
    key = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63)])
    logits = torch.zeros(1, 1000).expand(5, -1)
    assert_equals_the_reference(
        logits, temperature=1.0, key=key, position=torch.full((5,), position, dtype=torch.int64)
    )


def test_ties_are_broken_by_token_id(interpreter):
    """The nucleus of 300 equals is the first 150, which crosses the edge of a block."""
    arguments = dict(temperature=1.0, top_p=0.5, key=keys(4), position=torch.arange(4))
    assert assert_equals_the_reference(torch.zeros(4, 300), **arguments).max() < 150
    logits = torch.zeros(3, 150)
    logits[:, [100, 140]] = 5.0
    greedy = dict(temperature=0.0, key=keys(3), position=torch.arange(3))
    assert assert_equals_the_reference(logits, **greedy).tolist() == [100, 100, 100]


def test_very_unlikely_tokens_and_large_logits(interpreter):
    logits = torch.tensor([[1e4, -1e4, 0.0], [-3e38, -3e38, -3e38], [3e38, 0.0, 0.0]])
    assert_equals_the_reference(logits, temperature=1.0, top_p=0.99, key=keys(3), position=torch.arange(3))


def test_a_row_does_not_depend_on_the_batch(interpreter):
    logits = random(6, 100)
    columns = dict(temperature=torch.linspace(0, 2, 6), key=keys(6), position=torch.arange(6))
    with use_backend(sample="triton"):
        token, logprob = sample(logits, **columns)
        for rows in ([0], [5], [3, 1]):
            some = sample(logits[rows], **{name: value[rows] for name, value in columns.items()})
            assert torch.equal(some[0], token[rows]) and torch.equal(some[1], logprob[rows])


def test_strided_logits_and_an_empty_batch(interpreter):
    arguments = dict(temperature=0.8, key=keys(8), position=torch.arange(8))
    assert_equals_the_reference(random(60, 8).T, **arguments)
    none = torch.empty(0, dtype=torch.int64)
    with use_backend(sample="triton"):
        token, logprob = sample(torch.empty(0, 9), temperature=1.0, top_p=0.5, key=none, position=none)
    assert token.shape == logprob.shape == (0,)


@pytest.mark.parametrize("bad", [[math.nan, 0.0], [math.inf, 0.0]], ids=str)
def test_rows_without_a_distribution_are_errors(interpreter, bad):
    with use_backend(sample="triton"), pytest.raises(ValueError, match="finite maximum"):
        sample(torch.tensor([bad]), temperature=1.0, key=keys(1), position=torch.arange(1))


HALF = [pytest.param(dtype, marks=pytest.mark.slow) for dtype in (torch.bfloat16, torch.float16)]


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_compiles(compiled, dtype):
    ids = torch.empty(64, dtype=torch.int64, device="meta")
    logits = torch.empty(64, 151_936, dtype=dtype, device="meta")
    compiled(lambda: kernels.sample(logits, temperature=1.0, top_p=0.9, key=ids, position=ids))
