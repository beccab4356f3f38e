"""The `sprout` command.

    sprout run quickstart                    a whole recipe; finished stages are skipped
    sprout run quickstart train.updates=20   any setting can be overridden
    sprout run quickstart --dry-run          the resolved configuration and the plan
    sprout run quickstart --resume           go on after an interruption; --resume=step-000040: from there
    sprout compare quickstart --methods seed,grpo --seeds 0,1,2      methods x seeds, with intervals
    sprout search-index CORPUS FOLDER        what the search environment retrieves from
    sprout play household --seed 3           play an episode yourself
    sprout report runs/quickstart            one HTML page: curves, tokens coloured by Delta; --serve
    sprout rescore FILE FOLDER model.path=MODEL   score stored trajectories with and without skills
    sprout collect | annotate | sft | train | eval | base RECIPE     one stage of it

What a user can mend ends as one line on stderr and exit code 2; --debug shows the traceback.
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from sprout.engine.terminal import guard_streams, one_line, say, visible
from sprout.seed.interrupts import Interrupted, install

if TYPE_CHECKING:
    from sprout.seed.run import Run
    from sprout.seed.schema import Config

USER_ERROR = 2
MENDABLE = (ValueError, OSError, ImportError, FloatingPointError, RuntimeError, MemoryError)

app = typer.Typer(
    help="Sprout: a training engine for SEED (self-evolving on-policy distillation).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Recipe = Annotated[str, typer.Argument(help="a YAML file or the name of a shipped recipe")]
Overrides = Annotated[list[str] | None, typer.Argument(help="settings, as section.field=value")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print the resolved configuration and the plan")]
Resume = Annotated[
    str | None,
    typer.Option("--resume", metavar="[=step-000040]", help="go on after the latest, or that, checkpoint"),
]
Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error")]


@app.command()
def run(
    recipe: Recipe,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    resume: Resume = None,
    debug: Debug = False,
) -> None:
    """Run a recipe: its stages in order, then the closing summary."""
    with _ranks():
        opened = _open(recipe, overrides, resume, dry_run)
        if opened is not None:
            from sprout.seed.run import run_recipe

            run_recipe(opened)


def _stage_command(name: str, text: str) -> None:
    """Adds the command that runs stage `name` alone."""

    def command(
        recipe: Recipe,
        overrides: Overrides = None,
        dry_run: DryRun = False,
        resume: Resume = None,
        debug: Debug = False,
    ) -> None:
        with _ranks():
            opened = _open(recipe, overrides, resume, dry_run)
            if opened is not None:
                from sprout.seed.run import perform

                for key, value in perform(opened, name).items():
                    opened.say(f"  {key} = {value:.4g}" if isinstance(value, float) else f"  {key} = {value}")

    command.__doc__ = text
    app.command(name)(command)


STAGE_HELP = {
    "base": "Train the recipe's base model from scratch.",
    "collect": "Stage 1: let the base policy play the training tasks.",
    "annotate": "Stage 1: let the external analyzer write a skill for every trajectory.",
    "sft": "Stage 1: teach the base to write such skills.",
    "material": "Measure what Stage 2 can build on: do skills help, are they right?",
    "train": "Stage 2: outcome RL with gated distillation from the policy's own skills.",
}
RESUMABLE = ("run", *STAGE_HELP)  # with --resume
GO_ON = ("compare", "rescore")  # by themselves
for _name, _text in STAGE_HELP.items():
    _stage_command(_name, _text)


@app.command(name="eval")
def evaluate(
    recipe: Recipe,
    overrides: Overrides = None,
    model: Annotated[
        str | None, typer.Option("--model", help="model folder; default: the run's latest checkpoint")
    ] = None,
    panel: Annotated[str, typer.Option("--panel", help="select or report")] = "report",
    debug: Debug = False,
) -> None:
    """Measure success on a fixed panel; eval.skill says which skill is in the prompt."""
    from sprout.seed.config import load_config
    from sprout.seed.stages.report import evaluate_model

    with _ranks():
        _echo(evaluate_model(load_config(recipe, overrides or ()), model, panel))


@app.command()
def compare(
    recipe: Recipe,
    overrides: Overrides = None,
    methods: Annotated[str, typer.Option(help="comma-separated; the others are paired with the first")] = (
        "seed,grpo,null-skill,shuffled-skill"
    ),
    seeds: Annotated[str, typer.Option(help="comma-separated run seeds")] = "0,1,2",
    debug: Debug = False,
) -> None:
    """Train methods x seeds on a recipe, and print and plot what they reach; the same command goes on."""
    from sprout.engine.progress import main_console
    from sprout.seed.comparison import compare as compare_

    names = [name.strip() for name in methods.split(",")]
    with _ranks():
        compare_(_config(recipe, overrides, None), names, _numbers("--seeds", seeds), main_console())


@app.command()
def rescore(
    trajectories: Annotated[Path, typer.Argument(help="JSONL file (also .gz), or a folder of them")],
    output: Annotated[Path, typer.Argument(help="folder to write; one that was begun is gone on with")],
    overrides: Overrides = None,
    recipe: Annotated[str | None, typer.Option(help="recipe or config.yaml to start from")] = None,
    skills: Annotated[
        str, typer.Option(help="whose: file, policy, openai, static (analyzer.static_path) or scripted")
    ] = "file",
    format: Annotated[str, typer.Option(help="auto, sprout, messages, search-r1, or a plug-in's")] = "auto",
    system: Annotated[str, typer.Option(help="system message of trajectories that bring none")] = "",
    null_skill: Annotated[str, typer.Option(help="text of the null-skill control")] = "nothing",
    controls: Annotated[bool, typer.Option(help="also score null and shuffled skills")] = True,
    parquet: Annotated[bool, typer.Option("--parquet", help="write Parquet instead of JSONL")] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="count bad lines instead of stopping")] = False,
    max_line_mib: Annotated[int, typer.Option(min=1, help="longest line that is read")] = 64,
    debug: Debug = False,
) -> None:
    """Score stored trajectories with and without skills: do skills carry signal? No training."""
    from sprout.engine.terminal import PlainConsole
    from sprout.seed.config import load_config
    from sprout.seed.rescore.command import Options
    from sprout.seed.rescore.command import rescore as rescore_
    from sprout.seed.rescore.summary import describe

    options = Options(
        trajectories, skills, format, system, null_skill if controls else None, skip_bad, max_line_mib * 2**20
    )
    config = load_config(recipe, overrides or ())
    say(describe(rescore_(options, output, config, parquet, PlainConsole())))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs, or of `sprout compare`")],
    out: Annotated[
        Path | None, typer.Option(help="file to write; default: report.html in the first folder")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="serve it; the page refreshes itself")] = False,
    host: Annotated[str, typer.Option(help="address to serve on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 8123,
    cases: Annotated[int, typer.Option(min=0, help="trajectories shown of an update")] = 64,
    max_mib: Annotated[int, typer.Option(min=1, help="of trajectories in the page, all runs together")] = 16,
    debug: Debug = False,
) -> None:
    """Show runs as one HTML page that needs no network: curves, and the analyzer token by token."""
    from sprout.seed.report.audit import Limits
    from sprout.seed.report.page import write_report
    from sprout.seed.report.serve import serve as serve_

    limits = Limits(cases=cases, bytes=max_mib * 2**20)
    if serve:
        serve_(runs, host, port, limits)
    else:
        say(str(write_report(runs, out or runs[0] / "report.html", limits)))


@app.command()
def export(
    run_folder: Annotated[Path, typer.Argument(help="folder of a run")],
    target: Annotated[Path, typer.Argument(help="folder to write; must not exist")],
    checkpoint: Annotated[str, typer.Option(help="`latest`, `sft` or a name such as step-000040")] = "latest",
    adapter: Annotated[bool, typer.Option("--adapter", help="a LoRA run's adapter alone, for PEFT")] = False,
    debug: Debug = False,
) -> None:
    """Copy a run's model out as a Hugging Face folder, after checking that it loads."""
    from sprout.seed.export import export_model

    say(f"{export_model(run_folder, target, checkpoint, adapter)} -> {target}")


@app.command(name="search-index")
def search_index(
    corpus: Annotated[Path, typer.Argument(help="passages, one a line: JSONL with id, title, text; .gz too")],
    folder: Annotated[Path, typer.Argument(help="folder to write; it appears when the index is complete")],
    replace: Annotated[bool, typer.Option("--replace", help="also over an index that is there")] = False,
    debug: Debug = False,
) -> None:
    """Index the passages that the search environment retrieves from."""
    from sprout.seed.envs.search.index import build_index

    manifest = build_index(corpus, folder, replace=replace)
    say(f"{manifest['passages']:,} passages of {corpus} -> {folder}")


@app.command()
def play(
    environment: Annotated[str, typer.Argument(metavar="ENV", help="name of an environment, as household")],
    options: Annotated[list[str] | None, typer.Argument(help="its options, as key=value")] = None,
    seed: Annotated[int, typer.Option(min=0, help="which episode of the split")] = 0,
    split: Annotated[str, typer.Option(help="train, select, report, or another that it has")] = "train",
    debug: Debug = False,
) -> None:
    """Play an episode yourself, in the terminal, from the text that a policy gets."""
    from sprout.seed.play import parse_options
    from sprout.seed.play import play as play_

    play_(environment, seed, split, parse_options(options or ()))


@app.command()
def doctor(debug: Debug = False) -> None:
    """Print versions, devices and what each op will run on: what a bug report needs."""
    from sprout.seed.doctor import print_report

    print_report()


@app.command(
    add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def bench(context: typer.Context) -> None:
    """Benchmarks; `sprout bench --help` lists them."""
    from sprout.bench.cli import bench_app

    bench_app(args=context.args, prog_name="sprout bench", standalone_mode=False)


def main() -> NoReturn:
    """Entry point: runs the command and ends the process with its exit code."""
    install()
    guard_streams()
    sys.exit(execute(sys.argv[1:]))


def execute(given: list[str]) -> int:
    """Run one command; its exit code."""
    warnings.showwarning = _print_warning
    command = ["--resume=latest" if argument == "--resume" else argument for argument in given]
    try:
        app(args=command, prog_name="sprout")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Interrupted as interrupt:
        again = shlex.join(given) if given[0] in GO_ON else _resumed(given)
        goes_on = given[0] in (*RESUMABLE, *GO_ON)
        _print("interrupted" + (f"; go on with: sprout {again}" if goes_on else ""))
        return interrupt.exit_code
    except MENDABLE as error:
        if "--debug" in given:
            _print(traceback.format_exc().rstrip())
        _print(f"error: {_one_line(error)}")
        return USER_ERROR
    return 0


def _open(recipe: str, overrides: list[str] | None, resume: str | None, dry_run: bool) -> Run | None:
    """The run of a recipe; None after a dry run has been printed."""
    from sprout.seed.config import dump_config

    config = _config(recipe, overrides, resume)
    if dry_run:
        from sprout.seed.plan import plan

        _echo(dump_config(config))
        _echo(plan(config))
        return None
    from sprout.seed.run import start

    return start(config)


def _config(recipe: str, overrides: list[str] | None, resume: str | None) -> Config:
    from sprout.seed.config import load_config

    given = list(overrides or ())
    if resume is not None:
        given.append(f"run.resume={'true' if resume == 'latest' else resume}")
    return load_config(recipe, given)


def _resumed(arguments: list[str]) -> str:
    return shlex.join([*(a for a in arguments if not a.startswith("--resume")), "--resume"])


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(f"{option}: {text!r} is not a comma-separated list of whole numbers") from None


@contextmanager
def _ranks() -> Iterator[None]:
    """What torchrun starts is one of several ranks; else not even torch is imported before it is needed."""
    if "RANK" not in os.environ:
        yield
        return
    from sprout.engine import parallel

    with parallel.ranks():
        yield


def _echo(text: str) -> None:
    """Print a result, once for all ranks."""
    from sprout.engine import parallel

    if parallel.is_main():
        say(text)


def _one_line(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    text = "; ".join([text, *getattr(error, "__notes__", [])])
    return one_line(text)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _print(f"warning: {one_line(str(message))}")


def _print(text: str) -> None:
    print(visible(text), file=sys.stderr, flush=True)
