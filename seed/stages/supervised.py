"""The loop that the two supervised stages share: steps, held-out loss, metrics, checkpoints, exact resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sprout.engine import checkpoint
from sprout.engine.forest import Turn
from sprout.engine.metrics import MetricsLogger
from sprout.engine.optimizer import Optimizer
from sprout.engine.progress import progress
from sprout.engine.supervised import supervised_loss, supervised_step
from sprout.seed.policy import Policy
from sprout.seed.run import Run

CHECKPOINTS_KEPT = 2


@dataclass(frozen=True)
class Lessons:
    """What to learn: `batch(i)` gives step i's turns, always the same; `held_out` is never trained on."""

    name: str
    steps: int
    batch: Callable[[int], Sequence[Turn]]
    held_out: Sequence[Turn]
    checkpoint_every: int
    rows_per_micro_batch: int


def fit(run: Run, policy: Policy, optimizer: Optimizer, lessons: Lessons, folder: Path) -> None:
    """Train `policy` through all steps, going on from the last checkpoint in `folder` if there is one."""
    checkpoints = folder / "checkpoints"
    before = checkpoint.latest(checkpoints)
    done = int(checkpoint.load(before, policy.decoder, optimizer)["step"]) if before else 0
    log = MetricsLogger(folder, resume_from=done + 1)
    with progress(lessons.name, lessons.steps, console=run.console) as advance:
        advance(done)
        for step in range(done + 1, lessons.steps + 1):
            metrics = _step(policy, optimizer, lessons, step)
            log.log(step, metrics)
            advance()
            if "held_out_loss" in metrics:
                run.say(_line(lessons, step, metrics))
                checkpoint.save(
                    checkpoint.step_folder(checkpoints, step),
                    policy.decoder,
                    optimizer,
                    {"step": step},
                    tokenizer_folder=policy.tokenizer_folder,
                    keep_last=CHECKPOINTS_KEPT,
                )
    log.close()


def _step(policy: Policy, optimizer: Optimizer, lessons: Lessons, step: int) -> dict[str, float]:
    rows = lessons.rows_per_micro_batch
    metrics = {"lr": optimizer.lr}
    result = supervised_step(policy.decoder, optimizer, lessons.batch(step - 1), rows)
    if optimizer.non_finite:
        raise FloatingPointError(
            f"{lessons.name}, step {step}: gradient of {optimizer.non_finite[0]} is not finite; lower its lr"
        )
    metrics |= {"loss": result.loss, "grad_norm": result.grad_norm, "tokens": result.tokens}
    metrics["rows"] = float(result.rows)
    if step % lessons.checkpoint_every == 0 or step == lessons.steps:
        metrics["held_out_loss"] = supervised_loss(policy.decoder, lessons.held_out, rows)
    return metrics


def _line(lessons: Lessons, step: int, metrics: dict[str, float]) -> str:
    return (
        f"{lessons.name} {step}/{lessons.steps}: loss {metrics['loss']:.4f}, "
        f"held out {metrics['held_out_loss']:.4f}"
    )
