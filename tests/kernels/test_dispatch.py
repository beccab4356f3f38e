import subprocess
import sys
import warnings

import pytest
import torch
from torch._subclasses import FakeTensorMode

from sprout.kernels import available, dispatch, rms_norm, use_backend
from sprout.kernels.dispatch import OPS, refresh, resolve


@pytest.fixture(autouse=True)
def fresh_choices(monkeypatch):
    monkeypatch.delenv("SPROUT_KERNELS", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    refresh()
    yield
    monkeypatch.undo()
    refresh()


def chosen(op, tensor):
    return resolve(op, tensor).__module__.rsplit(".", 1)[-1]


def test_every_op_has_a_reference():
    for op in OPS:
        with use_backend(**{op: "reference"}):
            assert chosen(op, torch.zeros(1)) == "reference"


def test_use_backend_nests_and_restores():
    x = torch.zeros(1)
    with use_backend(rms_norm="reference"):
        with use_backend(swiglu="reference"):
            assert chosen("rms_norm", x) == chosen("swiglu", x) == "reference"
        assert chosen("rms_norm", x) == "reference" != chosen("swiglu", x)
    with pytest.raises(KeyError), use_backend(rms_norm="reference"):
        raise KeyError
    assert chosen("rms_norm", x) != "reference"


def test_environment_variable_overrides(monkeypatch):
    monkeypatch.setenv("SPROUT_KERNELS", "rms_norm=reference, tree_attention=torch,")
    refresh()
    assert chosen("rms_norm", torch.zeros(1)) == "reference"
    with use_backend(tree_attention="reference"):
        assert chosen("rms_norm", torch.zeros(1)) == "reference"
        assert chosen("tree_attention", torch.zeros(1)) == "reference"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rms_norm", "must look like"),
        ("norm=torch", "unknown op 'norm'; ops are rms_norm"),
        ("rms_norm=cuda", "unknown backend 'cuda'; backends are triton"),
    ],
)
def test_bad_environment_variable(monkeypatch, text, message):
    monkeypatch.setenv("SPROUT_KERNELS", text)
    refresh()
    with pytest.raises(ValueError, match=message):
        resolve("rms_norm", torch.zeros(1))


def test_bad_use_backend():
    with pytest.raises(ValueError, match="use_backend: unknown op 'norm'"), use_backend(norm="torch"):
        pass


def test_backend_that_cannot_run_is_an_error():
    with use_backend(policy_loss="native"), pytest.raises(RuntimeError, match="not implemented"):
        resolve("policy_loss", torch.zeros(1))
    with (
        use_backend(adamw_="native"),
        pytest.raises(RuntimeError, match=r"supports torch\.float32 only"),
    ):
        resolve("adamw_", torch.zeros(1, dtype=torch.float64))


def test_interpreter_refuses_cuda_tensors(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    refresh()
    with FakeTensorMode():
        tensor = torch.empty(1, device="cuda")
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1 cannot be mixed with CUDA tensors"):
        resolve("rms_norm", tensor)


def test_triton_takes_cuda_tensors_but_float64():
    with FakeTensorMode():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert chosen("rms_norm", torch.empty(1, device="cuda", dtype=dtype)) == "triton"
        double = torch.empty(1, device="cuda", dtype=torch.float64)
    assert chosen("rms_norm", double) == "torch"
    with use_backend(rms_norm="triton"), pytest.raises(RuntimeError, match=r"supports .* only"):
        resolve("rms_norm", double)


def test_triton_takes_cpu_tensors_only_when_asked_for_in_the_interpreter(monkeypatch):
    x = torch.zeros(1)
    with use_backend(rms_norm="triton"), pytest.raises(RuntimeError, match="or TRITON_INTERPRET=1"):
        resolve("rms_norm", x)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    refresh()
    assert chosen("rms_norm", x) != "triton"
    with use_backend(rms_norm="triton"):
        assert chosen("rms_norm", x) == "triton"


def test_missing_native_library_warns_once_and_runs_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "sprout.kernels._native", None)
    monkeypatch.delattr("sprout.kernels._native", raising=False)
    monkeypatch.delitem(sys.modules, "sprout.kernels.decode_attention.native", raising=False)
    with pytest.warns(UserWarning, match="native kernels are unavailable.*SPROUT_NO_NATIVE"):
        assert chosen("decode_attention", torch.zeros(1)) == "torch"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen("decode_attention", torch.zeros(2)) == "torch"
    with use_backend(decode_attention="native"), pytest.raises(RuntimeError, match="SPROUT_NO_NATIVE"):
        resolve("decode_attention", torch.zeros(1))


def test_available_names_choice_and_reasons():
    rows = {(row.op, row.device): row for row in available()}
    assert len(rows) == 2 * len(OPS)
    assert rows["rms_norm", "cpu"].backend == chosen("rms_norm", torch.zeros(1))
    assert rows["policy_loss", "cpu"].unavailable["native"] == "not implemented"
    if not torch.cuda.is_available():
        assert rows["rms_norm", "cuda"].backend is None
    with use_backend(rms_norm="reference"):
        assert available(("cpu",))[0].backend == "reference"


def test_import_loads_no_backend():
    code = (
        "import sys, sprout.kernels;"
        "print([m for m in sys.modules if m.startswith('sprout.') and m.split('.')[-1] in"
        " ('triton', 'native', '_native', 'torch', 'reference')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_choice_is_made_once():
    x, weight = torch.ones(1, 4), torch.ones(4)
    rms_norm(x, weight, 1e-6)
    before = dispatch._implementation.cache_info().misses
    rms_norm(x, weight, 1e-6)
    assert dispatch._implementation.cache_info().misses == before
