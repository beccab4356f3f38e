"""Trains other methods from the same Stage 1, under the same seeds and panels, each in a folder of its own.

Equal updates by default; `grpo-wallclock` instead trains GRPO for the seconds that this run's updates took.
"""

from __future__ import annotations

import math

from sprout.seed.config import config_from, with_method
from sprout.seed.methods import method_patch
from sprout.seed.run import Result, Run, open_run, perform
from sprout.seed.run_dir import differing_keys
from sprout.seed.schema import Config
from sprout.seed.stages.train import Training

WALL_CLOCK = "grpo-wallclock"
MORE_UPDATES = 20


def run_stage(run: Run) -> Result:
    """What the train and eval stages of every method of `compare` found, by method."""
    trained = run.folder.result("train")
    if trained is None:
        raise ValueError(f"compare: {run.folder.root} has no finished train stage; run that first")
    return {method: _method(run, method, trained["training_s"]) for method in run.config.compare}


def method_config(config: Config, method: str) -> Config:
    """The same run under another method, which compares with nothing itself.

    Raises ValueError if a field that this run's own method set would stay with the other.
    """
    kept = set(method_patch(config.objective.name)) - set(method_patch(method))
    for key in differing_keys(Config(), config):
        if key in kept:
            raise ValueError(
                f"compare: {method} would keep {key} from {config.objective.name}; make {method} the run's "
                f"objective.name and compare it with {config.objective.name}"
            )
    values = with_method(config, method).model_dump()
    values["compare"] = ()
    values["run"]["resume"] = bool(config.run.resume)
    if method == WALL_CLOCK:
        values["train"]["updates"] *= MORE_UPDATES
    return config_from(values)


def _method(run: Run, method: str, seconds: float) -> Result:
    config = method_config(run.config, method)
    other = open_run(Run(config, run.folder.compared(method), run.origin, run.console))
    budget = seconds if method == WALL_CLOCK else math.inf

    def train(other: Run) -> Result:
        return Training(other, budget).train()

    return {"train": perform(other, "train", train), "eval": perform(other, "eval")}
