"""Shared by the kernel tests: NaN-poisoned buffers, and the accuracy rule every op is held to."""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest
import torch

from sprout import kernels
from sprout.kernels import use_backend
from sprout.kernels.dispatch import NATIVE_DTYPES

Op = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """`torch.empty` yields NaN, so an element that a kernel forgets to write is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def interpreter() -> Iterator[None]:
    """Triton kernels run in Triton's interpreter, on CPU tensors."""
    from interpreter import interpreting

    with interpreting():
        yield


@pytest.fixture(params=["native", "torch", "triton"])
def cpu_backend(request: pytest.FixtureRequest) -> str:
    """Each fast backend of float32 CPU tensors, of the op that the test file is named after."""
    return _ready(request.param, request)


@pytest.fixture(
    params=[
        ("native", "float32"),
        ("native", "bfloat16"),
        ("torch", "float32"),
        ("torch", "bfloat16"),
        ("torch", "float16"),
        ("triton", "float32"),
        ("triton", "float16"),
    ],
    ids="-".join,
)
def cpu_path(request: pytest.FixtureRequest) -> tuple[str, torch.dtype]:
    """Each fast backend of CPU tensors with each dtype it takes, but float64.

    Triton's interpreter is wrong on bfloat16."""
    backend, dtype = request.param[0], getattr(torch, request.param[1])
    op = _op(request)
    if backend == "native" and dtype not in NATIVE_DTYPES.get(op, (torch.float32,)):
        pytest.skip(f"native {op} takes no {dtype}")
    return _ready(backend, request), dtype


def _op(request: pytest.FixtureRequest) -> str:
    return request.path.stem.removeprefix("test_")


def _ready(backend: str, request: pytest.FixtureRequest) -> str:
    op = _op(request)
    if not (Path(kernels.__file__).parent / op / f"{backend}.py").is_file():
        pytest.skip(f"{op} has no {backend} backend")
    if backend == "native":
        pytest.importorskip("sprout.kernels._native", reason="not built", exc_type=ImportError)
    if backend == "triton":
        # Before TRITON_INTERPRET=1: so its kernels are decorated for the GPU and can be compiled as well.
        import_module(f"sprout.kernels.{op}.triton")
        request.getfixturevalue("interpreter")
    return backend


@pytest.fixture
def assert_accurate() -> Callable[..., None]:
    """assert_accurate(op_name, backend, function, inputs, frozen=())

    Outputs and gradients of the backend are compared with the float64 reference, allowing twice the error of
    the reference in the inputs' own dtype, or the one rounding that no result escapes if that is more, plus
    1e-5; and two runs must give the same bits. `function` maps the inputs to outputs; inputs whose index is
    in `frozen` get no gradient. Upstream gradients are random numbers that the inputs' dtype holds exactly.

    For the gradients of Triton attention in half types the reference computes in the half type throughout, as
    plain torch would: like any tensor-core attention it rounds the weights before a matrix product.
    """

    def check(name: str, backend: str, function: Op, inputs: Sequence[torch.Tensor], frozen=()) -> None:
        def run(backend: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return _outputs_and_gradients(name, backend, function, inputs, frozen, dtype)

        dtype = inputs[0].dtype
        exact, plain = run("reference", [x.double() for x in inputs]), run("reference", inputs)
        ours, again = run(backend, inputs), run(backend, inputs)
        if name == "tree_attention" and backend == "triton" and dtype.itemsize == 2:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch, "promote_types", lambda narrow, wide: narrow)
                outputs = len(plain) - (len(inputs) - len(frozen))
                plain[outputs:] = run("reference", inputs)[outputs:]
        for index, (x, y, z, repeated) in enumerate(zip(exact, plain, ours, again, strict=True)):
            allowed = max(2 * _error(y, x), _error(x.to(y.dtype), x)) + 1e-5
            assert _error(z, x) <= allowed, f"result {index}: error {_error(z, x):.2e}, allowed {allowed:.2e}"
            assert torch.equal(z, repeated), f"result {index} differs between two runs"
            assert z.dtype == y.dtype and z.shape == y.shape

    return check


def _outputs_and_gradients(
    name: str,
    backend: str,
    function: Op,
    inputs: Sequence[torch.Tensor],
    frozen: Sequence[int],
    upstream_dtype: torch.dtype,
) -> list[torch.Tensor]:
    leaves = [x.detach().requires_grad_(index not in frozen) for index, x in enumerate(inputs)]
    with use_backend(**{name: backend}):
        outputs = function(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        generator = torch.Generator().manual_seed(7)
        for output in outputs:
            if output.requires_grad:
                upstream = torch.randn(output.shape, generator=generator).to(upstream_dtype)
                output.backward(upstream.to(output), retain_graph=True)
    return [x.detach() for x in outputs] + [x.grad for x in leaves if x.grad is not None]


def _error(x: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest elementwise error; equal infinities are equal, NaN is infinitely wrong."""
    x = x.double()
    difference = torch.where(x == exact, 0, x - exact).abs().nan_to_num(nan=torch.inf)
    return float(difference.max()) if difference.numel() else 0.0
