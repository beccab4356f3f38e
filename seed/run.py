"""Runs a recipe: its stages in order, each skipped when it is already done.

    run = start(load_config("quickstart"))
    run_recipe(run)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from sprout.engine.progress import main_console
from sprout.seed.run_dir import RunDir, claim
from sprout.seed.schema import Config

Result = dict[str, Any]
Stage = Callable[["Run"], Result]

STAGES = {
    "base": "sprout.seed.stages.base",
    "collect": "sprout.seed.stages.collect",
    "annotate": "sprout.seed.stages.annotate",
    "sft": "sprout.seed.stages.sft",
    "material": "sprout.seed.stages.material",
    "train": "sprout.seed.stages.train",
    "eval": "sprout.seed.stages.report",
    "compare": "sprout.seed.stages.compare",
}
STAGE_2 = ("train", "eval", "compare")


@dataclass(frozen=True)
class Run:
    """A configuration and its folder; `origin` is the run whose base and Stage 1 this one starts from."""

    config: Config
    folder: RunDir
    origin: RunDir
    console: Console = field(default_factory=main_console)

    @property
    def resume(self) -> bool:
        return bool(self.config.run.resume)

    def base_model(self) -> str | Path:
        """The model that Stage 1 starts from: the recipe's own base, or model.path."""
        return self.origin.base / "model" if "base" in self.config.run.stages else self.config.model.path

    def start_model(self) -> str | Path:
        """The model that Stage 2 starts from. Raises FileNotFoundError if Stage 1 has not been run."""
        if self.config.sft.epochs == 0:
            return self.base_model()
        if not self.origin.stage1_model.is_dir():
            raise FileNotFoundError(
                f"{self.origin.stage1_model} does not exist: run the sft stage first, or set sft.epochs=0"
            )
        return self.origin.stage1_model

    def say(self, text: str) -> None:
        """One line for the person who watches."""
        self.console.print(text, soft_wrap=True)


def run_folder(config: Config) -> RunDir:
    """Where the run of `config` lies."""
    return RunDir(Path(config.run.dir) / config.run.name)


def start(config: Config, console: Console | None = None) -> Run:
    """The run of `config`; its folder is created, or must hold the same run."""
    folder = run_folder(config)
    return open_run(Run(config, folder, folder, console or main_console()))


def open_run(run: Run) -> Run:
    """Claim the run's folder; what a resumed run asks for anew is opened again."""
    from sprout.seed.machine import description

    changed = claim(run.folder, run.config, description())
    for key in changed:
        run.say(f"resuming with another {key}; what Stage 1 has finished is kept")
    if changed or isinstance(run.config.run.resume, str):
        for name in ("compare",) if changed == ["compare"] else STAGE_2:
            run.folder.reopen(name)
    return run


def run_recipe(run: Run) -> Result:
    """Every stage of the recipe, `compare` if methods are listed, then the closing summary."""
    from sprout.seed.summary import close

    stages = run.config.run.stages
    for name in stages:
        perform(run, name)
    if run.config.compare and "compare" not in stages:
        perform(run, "compare")
    return close(run)


def perform(run: Run, name: str, stage: Stage | None = None) -> Result:
    """One stage, unless it is done; its result is stored together with the seconds it took, `wall_s`.

    `stage` replaces the registered function of that name. Raises ValueError for a stage that was begun, if
    the run does not resume.
    """
    done = run.folder.result(name)
    if done is not None:
        run.say(f"{name}: done before")
        return done
    run.folder.begin(name, run.resume)
    run.say(f"{name}: {run.folder.root}")
    started = time.monotonic()
    result = (stage or registered(name))(run)
    result = {**result, "wall_s": time.monotonic() - started}
    run.folder.finish(name, result)
    return result


def registered(name: str) -> Stage:
    """The function of a stage, imported when it is needed."""
    function: Stage = import_module(STAGES[name]).run_stage
    return function
