"""Stage 2: updates 1 to N, each played, analyzed, trained on, measured and recorded.

Everything random is keyed by (run seed, update, ...), and the checkpoint holds weights, optimizer and
counters. A run that was killed therefore goes on from its last checkpoint as if nothing had happened:
trajectories, evaluations and metrics of later updates are dropped and come out the same again.
"""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sprout.engine import checkpoint, parallel
from sprout.engine.flops import peak_flops
from sprout.engine.metrics import MetricsLogger, Timings
from sprout.engine.optimizer import Optimizer, OptimizerConfig, build_optimizer
from sprout.engine.progress import UpdateTable
from sprout.engine.schedule import Schedule
from sprout.seed import incidents
from sprout.seed.interrupts import Interrupted, finishing
from sprout.seed.player import Player
from sprout.seed.policy import load_policy, load_reference
from sprout.seed.run import Result, Run
from sprout.seed.run_dir import write_json
from sprout.seed.schema import TrainSection
from sprout.seed.scores import write_scores
from sprout.seed.stages.alarms import Alarms
from sprout.seed.stages.update import Outcome, Updater
from sprout.seed.trajectory import write_trajectories

SKIPPED_IN_A_ROW = 3
TERMINATED = "SIGTERM"
COLUMNS = {
    "success": "episode/success_rate",
    "val": "val/success_rate",
    "valid": "episode/valid_action_ratio",
    "entropy": "actor/entropy",
    "grad": "actor/grad_norm",
    "delta": "seed/delta_mean",
    "gate": "seed/gate_mean",
    "skills": "seed/skill_valid_rate",
    "right": "seed/skill_right_rate",
    "reuse": "seed/forest_reuse_ratio",
    "step s": "timing_s/step",
}


@dataclass
class Counters:
    """What a run must remember besides weights: `training_s` is time in updates, without evaluation."""

    updates: int = 0
    training_s: float = 0.0
    skipped_in_a_row: int = 0
    alarms: Alarms = field(default_factory=Alarms)
    incidents: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def of(state: dict[str, Any]) -> Counters:
        """From what `state` wrote."""
        happened = Counter(state.get(incidents.KEY, {}))
        return Counters(**{**state, "alarms": Alarms(**state["alarms"]), incidents.KEY: happened})

    def state(self) -> dict[str, Any]:
        """JSON values for a checkpoint."""
        return {
            "updates": self.updates,
            "training_s": self.training_s,
            "skipped_in_a_row": self.skipped_in_a_row,
            "alarms": self.alarms.state(),
            incidents.KEY: dict(self.incidents),
        }


def run_stage(run: Run) -> Result:
    """All updates of the recipe, or as many as train.max_wall_s allows."""
    return Training(run).train()


def final_model(run: Run) -> Path:
    """The model after the last update. Raises FileNotFoundError if there has been none."""
    newest = checkpoint.latest(run.folder.checkpoints)
    if newest is None:
        raise FileNotFoundError(f"{run.folder.checkpoints} has no checkpoint: run the train stage first")
    return newest / "model"


class Training:
    """Stage 2 of one run. `budget_s` ends it after so many seconds in updates (evaluation not counted)."""

    def __init__(self, run: Run, budget_s: float = math.inf) -> None:
        self.run, self.budget_s = run, budget_s
        self.started = time.monotonic()
        config = run.config
        self.policy = load_policy(run.start_model(), config)
        self.policy.decoder.recompute = config.train.activation_checkpointing
        self.optimizer: Optimizer = build_optimizer(self.policy.decoder, optimizer_config(config.train))
        self.player = Player(self.policy, config, run.console)
        self.timings = Timings()
        reference = load_reference(run.start_model(), config) if config.objective.kl_coef > 0 else None
        self.updater = Updater(config, self.policy, self.optimizer, self.player, reference, self.timings)
        self.counters = self._restore()
        self.terminated: Callable[[], bool] = lambda: False
        self.ended_by = self._limit()

    def train(self) -> Result:
        """Update until a limit is reached; what came of it.

        After SIGTERM the update in hand is finished and a checkpoint written; then Interrupted is raised.
        """
        with finishing() as self.terminated:
            result = self._updates()
        if self.ended_by == TERMINATED:
            raise Interrupted(signal.SIGTERM)
        return result

    def _updates(self) -> Result:
        config, counters = self.run.config.train, self.counters
        log = MetricsLogger(self.run.folder.root, resume_from=counters.updates + 1)
        table = UpdateTable(COLUMNS, console=self.run.console)
        if counters.updates == 0:
            self._evaluate()
            self.timings.collect()
            if self.ended_by:
                self._checkpoint()
        while not self.ended_by:
            with self.timings("step"):
                outcome = self._update()
            peak = peak_flops(self.policy.decoder.device)
            metrics = outcome.metrics | speed(outcome.metrics, self.timings.collect(), peak)
            for alarm in counters.alarms.check(metrics):
                self.run.say(f"alarm, update {counters.updates}: {alarm}")
            log.log(counters.updates, metrics)
            table.row(counters.updates, metrics)
            self._stop_if_broken(outcome)
            if counters.updates % config.checkpoint_every == 0 or self.ended_by:
                self._checkpoint()
        log.close()
        return {
            "updates": counters.updates,
            "training_s": counters.training_s,
            "ended_by": self.ended_by,
            incidents.KEY: incidents.counted(counters.incidents),
        }

    def _restore(self) -> Counters:
        """Counters of the checkpoint to go on from, after dropping everything that came later."""
        folder, resume = self.run.folder, self.run.config.run.resume
        chosen = checkpoint.resolve(folder.checkpoints, resume if isinstance(resume, str) else True)
        counters = Counters()
        if chosen is not None:
            counters = Counters.of(checkpoint.load(chosen, self.policy.decoder, self.optimizer))
            checkpoint.supersede_later(chosen)
            self.run.say(f"train: going on after update {counters.updates}")
        folder.drop_after(counters.updates)
        return counters

    def _update(self) -> Outcome:
        counters, every = self.counters, self.run.config.eval.every
        started = time.monotonic()
        outcome = self.updater(counters.updates + 1)
        counters.training_s += time.monotonic() - started
        counters.updates += 1
        counters.incidents.update(incidents.of_metrics("rollout", outcome.metrics))
        write_trajectories(self.run.folder.trajectories(counters.updates), outcome.trajectories)
        counters.skipped_in_a_row = counters.skipped_in_a_row + 1 if outcome.skipped else 0
        if outcome.skipped:
            outcome.metrics["actor/non_finite"] = outcome.non_finite
        self.ended_by = self._limit()
        self._keep_scores(outcome)
        if self._complete or (every and counters.updates % every == 0):
            outcome.metrics |= self._evaluate()
        return outcome

    @property
    def _complete(self) -> bool:
        """Whether the last update is made; after SIGTERM others follow some day."""
        return self.ended_by not in ("", TERMINATED)

    def _keep_scores(self, outcome: Outcome) -> None:
        every, update = self.run.config.train.scores_every, self.counters.updates
        if every and (self._complete or update == 1 or update % every == 0):
            owners = [(outcome.trajectories[index].id, turn) for index, turn in outcome.turns.owners]
            write_scores(self.run.folder.scores(update), owners, outcome.scores)

    def _evaluate(self) -> dict[str, float]:
        """Success of the present policy on the select panel, written to evals/ and returned as val/*."""
        config, file = self.run.config.eval, self.run.folder.evaluation(self.counters.updates)
        if config.select_tasks == 0:
            return {}
        with self.timings("eval"):
            student = self.player.evaluate("select", config.select_tasks, config.skill)
            record: dict[str, Any] = {"updates": self.counters.updates, "student": student.record()}
            metrics, happened = student.rate.metrics("val"), Counter(student.incidents)
            if student.mean_reward is not None:
                metrics["val/mean_reward"] = student.mean_reward
            if config.teacher:
                plain = student if config.skill == "none" else None
                teacher = self.player.evaluate("select", config.select_tasks, "policy", plain)
                record["teacher"] = teacher.record()
                happened.update(teacher.incidents)
                metrics["val/teacher_success_rate"] = teacher.rate.overall
                metrics["val/teacher_minus_student"] = teacher.rate.overall - student.rate.overall
            write_json(file, record)
        self.counters.incidents.update(happened)
        return metrics | incidents.metrics("val", happened)

    @parallel.on_main
    def _limit(self) -> str:
        """Which limit the run has reached; empty while it goes on."""
        train = self.run.config.train
        if self.counters.updates >= train.updates:
            return "train.updates"
        if self.terminated():
            return TERMINATED
        if self.counters.training_s >= self.budget_s:
            return "the time of the method it is compared with"
        if train.max_wall_s is not None and time.monotonic() - self.started >= train.max_wall_s:
            return "train.max_wall_s"
        return ""

    def _checkpoint(self) -> None:
        """Its time is on record with the next update, whose line is written later than this one's."""
        with self.timings("checkpoint"):
            checkpoint.save(
                checkpoint.step_folder(self.run.folder.checkpoints, self.counters.updates),
                self.policy.decoder,
                self.optimizer,
                self.counters.state(),
                tokenizer_folder=self.policy.tokenizer_folder,
                keep_last=self.run.config.train.keep_last,
            )

    def _stop_if_broken(self, outcome: Outcome) -> None:
        """Raises FloatingPointError after too many useless updates; their last turns are on disk then."""
        if outcome.skipped:
            self.run.say(
                f"update {self.counters.updates} skipped: the gradient of {outcome.non_finite} is not finite"
            )
        if self.counters.skipped_in_a_row < SKIPPED_IN_A_ROW:
            return
        file = self.run.folder.root / "non_finite" / f"{self.counters.updates:06d}.json"
        turns = [
            {"trajectory": outcome.trajectories[index].id, "turn": turn} for index, turn in outcome.skipped
        ]
        trajectories = self.run.folder.trajectories(self.counters.updates)
        write_json(file, {"gradients": outcome.non_finite, "trajectories": str(trajectories), "turns": turns})
        raise FloatingPointError(
            f"{SKIPPED_IN_A_ROW} updates in a row had no finite gradient ({outcome.non_finite}); the turns "
            f"are listed in {file}; lower train.lr and go on with --resume"
        )


def speed(metrics: dict[str, Any], timings: dict[str, float], peak: float | None) -> dict[str, float]:
    """timing_s/*, and the rates that follow from it; perf/mfu/actor where the device's peak is known.

    perf/flops counts what an update computes on its forests: students forward and backward, teachers
    forward.
    """
    tokens, update = metrics["perf/total_num_tokens"], timings["timing_s/update"]
    training = timings["timing_s/step"] - timings.get("timing_s/eval", 0.0)
    rates = {"perf/throughput": tokens / training, "seed/pair_tokens_per_s": tokens / update}
    if peak is not None:
        rates["perf/mfu/actor"] = metrics["perf/flops"] / (update * peak)
    return timings | rates


def optimizer_config(train: TrainSection) -> OptimizerConfig:
    """The optimizer of Stage 2."""
    schedule = Schedule(
        train.schedule,
        total_steps=max(1, train.updates * train.optimizer_steps_per_update),
        warmup_steps=train.warmup_updates * train.optimizer_steps_per_update,
    )
    return OptimizerConfig(
        name=train.optimizer,
        lr=train.lr,
        muon_lr=train.muon_lr,
        betas=train.betas,
        weight_decay=train.weight_decay,
        clip_grad_norm=train.grad_clip,
        schedule=schedule,
    )
