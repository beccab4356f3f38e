from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from sprout.kernels import rms_norm, swiglu, use_backend

native = pytest.importorskip("sprout.kernels._native", reason="not built", exc_type=ImportError)
RUNNABLE = native.WIDEST_FIRST[native.WIDEST_FIRST.index(native.ISA) :]


@pytest.mark.parametrize("isa", native.WIDEST_FIRST)
def test_every_build_gives_the_same_results(isa, monkeypatch):
    name = f"sprout.kernels._native_{isa}"
    if isa not in RUNNABLE or find_spec(name) is None:
        pytest.skip("not built, or not for this CPU")
    x, y = torch.randn(2, 5, 77, generator=torch.Generator().manual_seed(0))
    wanted = swiglu(x, y), rms_norm(x, y[0], 1e-6)
    monkeypatch.setattr(native, "_module", import_module(name))
    with use_backend(swiglu="native", rms_norm="native"):
        torch.testing.assert_close((swiglu(x, y), rms_norm(x, y[0], 1e-6)), wanted)


@pytest.mark.parametrize(
    ("capability", "built", "chosen"),
    [
        ("AVX512", {"avx512", "avx2", "baseline"}, "avx512"),
        ("AVX2", {"avx512", "avx2", "baseline"}, "avx2"),
        ("AVX512", {"avx2"}, "avx2"),
        ("DEFAULT", {"avx512", "avx2", "baseline"}, "baseline"),
        ("SVE256", {"baseline"}, "baseline"),
    ],
)
def test_choice_of_build(capability, built, chosen, monkeypatch):
    monkeypatch.setattr(native, "find_spec", lambda name: name.split("_native_")[1] in built or None)
    assert native._choose(capability) == chosen


def test_no_build_for_this_cpu_is_an_import_error(monkeypatch):
    monkeypatch.setattr(native, "find_spec", lambda name: "avx512" in name or None)
    with pytest.raises(ImportError, match="no native module for avx2 or below"):
        native._choose("AVX2")


def test_arrays_are_never_converted():
    """What is written to a converted copy would be lost."""
    wide, narrow = np.ones((2, 8), np.float64), np.ones((2, 8), np.float32)
    with pytest.raises(TypeError):
        native.swiglu_forward(narrow, narrow, wide, 1)
    with pytest.raises(TypeError):
        native.adamw([narrow[0]], [narrow[0]], [wide[0]], [narrow[0]], 0.9, 0.9, 1, 1, 0, 0, 1, 1)
    ids, heads, wide_heads = np.zeros(2, np.int32), narrow.reshape(2, 2, 4), wide.reshape(2, 2, 4)
    with pytest.raises(TypeError):
        native.tree_attention_forward(heads, heads, heads, ids, ids, ids, 1.0, wide_heads, narrow[:, :2], 1)
    with pytest.raises(TypeError):
        native.decode_attention(heads, heads[None], heads[None], ids[None], ids, ids, 1.0, wide_heads, 1)
    key = np.zeros(2, np.int64)
    with pytest.raises(TypeError):
        native.sample(narrow, narrow[:, 0].copy(), wide[:, 0].copy(), key, key, ids, narrow[:, 0].copy(), 1)


def test_numbers_may_be_integers():
    x = np.ones((1, 8), np.uint16)
    native.rms_norm_forward(x, x[0], 0, x.copy(), np.empty(1, np.float32), 1)
