"""`sprout bench ...`: one command per benchmark. Heavy imports wait until a command runs."""

from __future__ import annotations

import json as json_
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

    from sprout.bench.table import Row

bench_app = typer.Typer(
    help="Benchmarks against peers, side by side.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Model = Annotated[str, typer.Option(help="small, quickstart, or a model folder")]
Rounds = Annotated[int, typer.Option(min=1, help="rounds in which all providers take turns")]
Json = Annotated[bool, typer.Option("--json", help="end with one line of JSON")]
Csv = Annotated[Path | None, typer.Option(help="also write the table to this file")]


@bench_app.command()
def pair(
    model: Model = "small", rounds: Rounds = 3, json: Json = False, csv: Csv = None, device: str = "cpu"
) -> None:
    """Paired re-scoring: one gradient of the SEED loss, ours against transformers."""
    from sprout.bench.measure import machine
    from sprout.bench.models import build_decoder
    from sprout.bench.pair import measure_pair
    from sprout.bench.workload import PairShape

    where = _device(device)
    result = measure_pair(build_decoder(model, where), PairShape(), rounds)
    _report(f"paired re-scoring, {model} model", result.rows(), result.summary(), machine(where), json, csv)


@bench_app.command()
def generate(
    model: Model = "quickstart", rounds: Rounds = 5, json: Json = False, csv: Csv = None, device: str = "cpu"
) -> None:
    """Generation: ours against transformers' `generate`, multi-turn and single-shot."""
    from sprout.bench.episodes import MULTI_TURN, SINGLE_SHOT
    from sprout.bench.generate import OURS, PEER, PEER_CACHED, measure_generate
    from sprout.bench.measure import machine
    from sprout.bench.models import build_decoder

    where = _device(device)
    decoder = build_decoder(model, where)
    many, one = (measure_generate(decoder, shape, rounds) for shape in (MULTI_TURN, SINGLE_SHOT))
    summary = {
        "speedup_vs_hf": many.speedup(PEER),
        "speedup_vs_hf_cache_kept": many.speedup(PEER_CACHED),
        "speedup_vs_hf_single_shot": one.speedup(PEER),
        "tokens_per_s": many.tokens_per_s(OURS),
        "tokens_per_s_single_shot": one.tokens_per_s(OURS),
    }
    rows = many.rows("multi-turn") + one.rows("single-shot")
    _report(f"generation, {model} model", rows, summary, machine(where), json, csv)


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
        typer.echo(json_.dumps(dict(summary) | dict(columns)))
    else:
        for name, value in summary.items():
            typer.echo(f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}")
