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
from sprout.seed.config import Config
from sprout.seed.run_dir import RunDir, open_run

Result = dict[str, Any]

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
    """One run: its configuration and its folder. `origin` is the run whose base and Stage 1 it starts from."""

    config: Config
    folder: RunDir
    origin: RunDir
    console: Console = field(default_factory=Console)

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
                f"{self.origin.stage1_model}: Stage 1 has not been run; run `sprout sft`, or set sft.epochs=0"
            )
        return self.origin.stage1_model

    def say(self, text: str) -> None:
        """One line for the person who watches."""
        self.console.print(text, highlight=False, soft_wrap=True)


def start(config: Config, console: Console | None = None) -> Run:
    """Open (or create) the run's folder."""
    from sprout.seed.machine import description

    console = console or Console()
    folder, changed = open_run(config, description())
    run = Run(config, folder, folder, console)
    for key in changed:
        run.say(f"resuming with another {key}; what Stage 1 has finished is kept")
    if changed or isinstance(config.run.resume, str):
        for name in STAGE_2:
            folder.reopen(name)
    return run


def run_recipe(run: Run) -> Result:
    """Every stage of the recipe, then the closing summary."""
    from sprout.seed.summary import close

    for name in run.config.run.stages:
        run_stage(run, name)
    return close(run)


def run_stage(run: Run, name: str) -> Result:
    """One stage, unless it is done. Its result, with the seconds it took as `wall_s`, is stored and returned."""
    done = run.folder.result(name)
    if done is not None:
        run.say(f"{name}: done before")
        return done
    run.folder.begin(name, run.resume)
    run.say(f"{name}: {run.folder.root}")
    started = time.monotonic()
    result = stage(name)(run)
    result = {**result, "wall_s": time.monotonic() - started}
    run.folder.finish(name, result)
    return result


def stage(name: str) -> Callable[[Run], Result]:
    """The function of a stage, imported when it is needed."""
    function: Callable[[Run], Result] = import_module(STAGES[name]).run_stage
    return function
