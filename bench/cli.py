"""`sprout bench ...`: one command per benchmark. Heavy imports wait until a command runs."""

from __future__ import annotations

import json as json_
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sprout.engine.terminal import say

if TYPE_CHECKING:
    import torch

    from sprout.bench.table import Row

bench_app = typer.Typer(
    help="Benchmarks against peers, side by side.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Model = Annotated[str, typer.Option(help="small, quickstart, 135m, smollm2, or a model folder")]
Rounds = Annotated[int, typer.Option(min=1, help="rounds in which all providers take turns")]
Backend = Annotated[
    str | None,
    typer.Option(help="what ours runs on: native, torch, reference or triton; all: every one, in turns"),
]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16")]
Json = Annotated[bool, typer.Option("--json", help="end with one line of JSON")]
Csv = Annotated[Path | None, typer.Option(help="also write the table to this file")]


@bench_app.command()
def pair(
    model: Model = "small",
    rounds: Rounds = 3,
    backend: Backend = None,
    json: Json = False,
    csv: Csv = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Paired re-scoring: one gradient of the SEED loss, ours against transformers."""
    from sprout.bench.measure import machine
    from sprout.bench.models import build_decoder
    from sprout.bench.pair import measure_pair
    from sprout.bench.workload import PairShape

    where = _device(device)
    decoder = build_decoder(model, where, _dtype(dtype))
    result = measure_pair(decoder, PairShape(), rounds, backend=backend)
    _report(f"paired re-scoring, {model} model", result.rows(), result.summary(), machine(where), json, csv)


@bench_app.command()
def rescore(
    model: Model = "smollm2",
    rounds: Rounds = 3,
    json: Json = False,
    csv: Csv = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Scoring without training: both contexts of every action, ours against transformers' two passes."""
    from sprout.bench.measure import machine
    from sprout.bench.models import SIZES, build_decoder
    from sprout.bench.rescore import measure_rescore
    from sprout.bench.workload import REAL_MODEL, PairShape

    where = _device(device)
    shape = REAL_MODEL if where.type == "cpu" and model not in SIZES else PairShape()
    result = measure_rescore(build_decoder(model, where, _dtype(dtype)), shape, rounds)
    _report(f"re-scoring, {model} model", result.rows(), result.summary(), machine(where), json, csv)


@bench_app.command()
def generate(
    model: Model = "quickstart",
    rounds: Annotated[
        int | None, typer.Option(min=1, help="default: 5, or 3 for a real model on a CPU")
    ] = None,
    backend: Backend = None,
    json: Json = False,
    csv: Csv = None,
    device: str = "cpu",
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; default: bfloat16 for a real model")
    ] = None,
) -> None:
    """Generation: ours against transformers' `generate`, multi-turn and single-shot."""
    from sprout.bench.episodes import MULTI_TURN, REAL_MULTI_TURN, REAL_SINGLE_SHOT, SINGLE_SHOT
    from sprout.bench.generate import OURS, measure_generate
    from sprout.bench.measure import machine
    from sprout.bench.models import SIZES, build_decoder

    where, real = _device(device), model not in SIZES
    dtype = dtype or ("bfloat16" if real else "float32")
    short = real and where.type == "cpu"
    shapes = (REAL_MULTI_TURN, REAL_SINGLE_SHOT) if short else (MULTI_TURN, SINGLE_SHOT)
    decoder = build_decoder(model, where, _dtype(dtype))
    many, one = (measure_generate(decoder, s, rounds or (3 if short else 5), backend) for s in shapes)
    summary = {
        **many.speedups(),
        **one.speedups("_single_shot"),
        "tokens_per_s": many.tokens_per_s(OURS),
        "tokens_per_s_single_shot": one.tokens_per_s(OURS),
        **many.by_backend(),
        **one.by_backend("_single_shot"),
        "dtype": dtype,
        "batch": many.shape.episodes,
    }
    rows = many.rows("multi-turn") + one.rows("single-shot")
    _report(f"generation, {model} model, {dtype}", rows, summary, machine(where), json, csv)


@bench_app.command()
def kernels(
    op: Annotated[list[str] | None, typer.Option(help="only this op; may be repeated")] = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
    rounds: Rounds = 5,
    quick: Annotated[bool, typer.Option("--quick", help="tiny sizes, to see that everything runs")] = False,
    compile: Annotated[
        bool | None, typer.Option(help="torch.compile among the peers; default: on CUDA only")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for CSV, Markdown and pictures")] = Path("bench-out"),
    summary: Annotated[
        bool, typer.Option("--summary", help="only the tracked ratios, without files")
    ] = False,
    json: Json = False,
) -> None:
    """Every op: forward, backward and both, on all backends and against peers; speed and peak memory."""
    from sprout.bench.case import Setting
    from sprout.bench.kernel_report import print_sweep, write_files
    from sprout.bench.kernels import joined, measure_kernels
    from sprout.bench.measure import machine
    from sprout.bench.ops import CASES
    from sprout.bench.tracked import measure_summary

    where = _device(device)
    columns = machine(where)
    if summary:
        rows, ratios = measure_summary(where, quick)
        _report("tracked ratios", rows, ratios, columns, json, None)
        return
    allowed = where.type == "cuda" if compile is None else compile
    scale = "quick" if quick else "cuda" if where.type == "cuda" else "cpu"
    setting = Setting(where, _dtype(dtype), scale, allowed)
    sweeps = []
    for sweep in measure_kernels(setting, _chosen(op, CASES), rounds):
        print_sweep(sweep)
        sweeps.append(sweep)
    write_files(out, sweeps, columns)
    say(f"kernels.csv, kernels.md and pictures are in {out}")
    if json:
        say(json_.dumps(joined(sweeps).summary(where) | columns))


def _chosen(ops: Sequence[str] | None, known: Mapping[str, object]) -> list[str]:
    unknown = [op for op in ops or () if op not in known]
    if unknown:
        raise ValueError(f"--op {unknown[0]}: not one of {', '.join(known)}")
    return list(ops or known)


def _dtype(name: str) -> torch.dtype:
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise ValueError(f"--dtype {name}: not one of {', '.join(known)}")
    return known[name]


@bench_app.command()
def env(
    name: Annotated[str, typer.Argument(help="environment, by its entry point")] = "alfworld",
    episodes: Annotated[int, typer.Option(min=1, help="tasks to play at random")] = 40,
    backend: Annotated[str | None, typer.Option(help="the environment's own option of that name")] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """An environment's speed under random play: steps per second, reset, memory of a live episode."""
    import torch

    from sprout.bench.environments import measure_environment
    from sprout.bench.measure import machine
    from sprout.seed.envs import environment_class, make_env

    options = {"format": "plain"} if hasattr(environment_class(name), "formats") else {}
    options |= {} if backend is None else {"backend": backend}
    result = measure_environment(lambda: make_env(name, **options), episodes)
    title = f"{name}, random play, CPU seconds"
    _report(title, result.rows(name), result.summary(), machine(torch.device("cpu")), json, csv)


@bench_app.command()
def search(
    index: Annotated[Path, typer.Argument(help="folder that `sprout search-index` made")],
    questions: Annotated[list[Path], typer.Argument(help="question files (also .gz), or folders of them")],
    topk: Annotated[int, typer.Option(min=1, help="passages for each query")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="queries asked together")] = 256,
    rounds: Rounds = 3,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Retrieval of the search environment: recall of golden answers, queries per second."""
    import torch

    from sprout.bench.measure import machine
    from sprout.bench.retrieval import measure_retrieval
    from sprout.seed.envs.search.index import open_index
    from sprout.seed.envs.search.questions import question_files, read_questions

    (files,) = question_files([str(path) for path in questions]).values()
    asked = [question for file in files for question in read_questions(file)]
    result = measure_retrieval(open_index(index), asked, topk, batch, rounds)
    title = f"retrieval from {index}"
    _report(title, result.rows(), result.summary(), machine(torch.device("cpu")), json, csv)


@bench_app.command()
def scaling(
    ranks: Annotated[int, typer.Option(min=2, help="processes, with so many times the work of one")] = 2,
    model: Model = "quickstart",
    rounds: Rounds = 3,
    quick: Annotated[bool, typer.Option("--quick", help="tiny sizes, to see that everything runs")] = False,
    json: Json = False,
    csv: Csv = None,
    device: str = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Weak scaling of an update and of generation: several processes against one, each with as much to do."""
    from sprout.bench.measure import machine
    from sprout.bench.scaling import measure_scaling

    where = _device(device)
    _dtype(dtype)
    result = measure_scaling(ranks, model, device, dtype, rounds, "quick" if quick else "full")
    _report(f"weak scaling, {model} model", result.rows(), result.summary(), machine(where), json, csv)
    if result.cores < ranks and where.type == "cpu":
        warnings.warn(f"{ranks} processes shared {result.cores} core: the ratios say nothing", stacklevel=2)


def _device(name: str) -> torch.device:
    import torch

    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"--device {name}: torch {torch.__version__} finds no CUDA device here; use --device cpu"
        )
    return torch.device(name)


def _report(
    title: str,
    rows: Sequence[Row],
    summary: Row,
    columns: Mapping[str, str | int],
    json: bool,
    csv: Path | None,
) -> None:
    from sprout.bench.table import show, write_csv

    show(title, rows)
    if csv is not None:
        write_csv(csv, rows, columns)
    if json:
        say(json_.dumps(dict(summary) | dict(columns)))
    else:
        for name, value in summary.items():
            say(f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}")
