"""Small ceilings: the tests are about the arithmetic around them."""

import pytest

from sprout.bench import measure


@pytest.fixture(autouse=True)
def small_ceilings(monkeypatch):
    monkeypatch.setattr(measure, "GEMM_SIZE", {"cpu": 64})
    monkeypatch.setattr(measure, "COPY_BYTES", {"cpu": 2**20})
    monkeypatch.setattr(measure, "SHORTEST_S", {"cpu": 0.0})
