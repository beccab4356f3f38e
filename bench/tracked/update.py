"""A whole SEED update against the same on the torch backend, and AdamW against a copy."""

from __future__ import annotations

from functools import partial

import torch

from sprout.bench.backends import on_backend
from sprout.bench.case import Setting
from sprout.bench.measure import Run
from sprout.bench.models import build_decoder
from sprout.bench.ops import optimizer
from sprout.bench.tracked.sizes import QUICK, Sizes
from sprout.bench.tracked.summary import OURS, Summary, our_program
from sprout.bench.workload import PairShape, make_trajectories
from sprout.engine.optimizer import OptimizerConfig, build_optimizer
from sprout.engine.update import UpdateSettings, policy_update
from sprout.kernels import PolicyLossCoefficients

TORCH = "sprout, torch backend"


def update_ratios(
    key: str, model: str, shape: PairShape, rounds: int, device: torch.device, summary: Summary
) -> None:
    """Dual forward, loss, backward and AdamW; both start from the same weights and change them."""
    decoder = build_decoder(model, device)
    turns = [turn for x in make_trajectories(shape, decoder.config.vocab_size) for turn in x.turns]
    settings = UpdateSettings(PolicyLossCoefficients(opd=0.5))
    update = partial(policy_update, decoder, build_optimizer(decoder, OptimizerConfig()), turns, settings)
    runs: dict[str, Run] = {OURS: update, TORCH: on_backend("torch", update, device, decoder.dtype)}
    for run in runs.values():
        run()
    timings, _ = summary.time(f"{key}, {model} model", runs, rounds, device)
    summary.ratios |= {
        f"{key}_vs_torch_path": timings[OURS].speedup_over(timings[TORCH]),
        f"{key}_s": timings[OURS].median,
    }


def adamw_ratios(setting: Setting, sizes: Sizes, summary: Summary) -> None:
    layer = optimizer.LAYER["quick" if sizes is QUICK else "cpu"]
    case = optimizer.case(setting, list(layer) * sizes.adamw_layers)
    run = our_program(case, setting.device).prepare("forward")
    run()
    timings, ceilings = summary.time("adamw_", {OURS: run}, sizes.rounds, setting.device)
    rate = case.work["forward"].bytes / timings[OURS].median / 1e9
    summary.ratios |= {"adamw_of_copy": rate / ceilings.copy_gb_per_s, "adamw_gb_per_s": rate}
