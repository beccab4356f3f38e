"""A policy at play: rollouts, analysis and evaluation through one generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.console import Console

from sprout.engine import parallel
from sprout.engine.model import Decoder
from sprout.engine.progress import progress
from sprout.seed import incidents
from sprout.seed.analyzer import Analyzer
from sprout.seed.analyzer.build import build_analyzer
from sprout.seed.analyzer.given import StaticAnalyzer
from sprout.seed.analyzer.server import usage
from sprout.seed.envs import environment_class
from sprout.seed.episode import Task
from sprout.seed.knowledge import Knowledge, Question
from sprout.seed.policy import Policy
from sprout.seed.rollout import RolloutResult, Rollouts, panel
from sprout.seed.run import run_folder
from sprout.seed.schema import Config
from sprout.seed.statistics import SuccessRate
from sprout.seed.trajectory import Skill, Trajectory
from sprout.seed.workers import environment_factory

Shown = Literal["none", "own", "oracle", "policy", "static"]
Split = Literal["select", "report"]
EVALUATION = -1  # stands for the update in sampling keys, so that every evaluation draws the same numbers


@dataclass(frozen=True)
class Evaluation:
    """Success on a panel. `skills` are those in the prompt, by task seed; empty without skills.

    A task that was dropped, or whose skill could not be had, is in `incidents` and nowhere else.
    """

    split: Split
    shown: Shown
    rate: SuccessRate
    trajectories: list[Trajectory] = field(repr=False)
    skills: Mapping[int, Skill] = field(default_factory=dict, repr=False)
    incidents: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def mean_reward(self) -> float | None:
        """Mean over the episodes whose reward is known; in WebShop this is the score. None without any."""
        rewards = [t.reward for t in self.trajectories if t.reward is not None]
        return sum(rewards) / len(rewards) if rewards else None

    def record(self) -> dict[str, Any]:
        """What is written to disk."""
        low, high = self.rate.ci95
        return {
            "split": self.split,
            "skill": self.shown,
            "tasks": self.rate.episodes,
            "success_rate": self.rate.overall,
            "macro_success_rate": self.rate.macro,
            "mean_reward": self.mean_reward,
            "ci95": [low, high],
            "by_family": {name: {"successes": w, "tasks": n} for name, (w, n) in self.rate.by_family.items()},
            "solved": [t.seed for t in self.trajectories if t.success],
            incidents.KEY: incidents.counted(self.incidents),
        }


class DealtAnalyzer:
    """Deals trajectories to the ranks; each analyzes its own, with the whole weights of `decoder`."""

    def __init__(self, analyzer: Analyzer, decoder: Decoder) -> None:
        self.name = analyzer.name
        self._analyzer, self._decoder = analyzer, decoder

    def analyze(self, trajectories: list[Trajectory]) -> list[Skill]:
        """One skill per trajectory, the same on every rank."""
        with parallel.whole(self._decoder):
            return parallel.share(trajectories, self._analyzer.analyze)

    def take_usage(self) -> dict[str, float]:
        """What all ranks have asked a server for since the last call; empty when they ask none."""
        asked = parallel.gather(usage(self._analyzer))
        return {name: sum(each[name] for each in asked) for name in asked[0]}


class Player:
    """Acts with the present weights of `policy`; after they change, nothing needs to be told."""

    def __init__(self, policy: Policy, config: Config, console: Console | None = None) -> None:
        self.policy, self.config, self.console = policy, config, console
        self.environment = environment_class(config.env.name)
        make = environment_factory(config.env)
        self._knowledge = Knowledge(make)
        self.generator = policy.generator(config)
        if "static" in (config.analyzer.kind, config.train.skill, config.eval.skill):
            self._static()  # so that a missing file is said now, not after hours
        self._rollouts = Rollouts(self.generator, policy.chat, make, config)

    def rollout(
        self, tasks: Sequence[Task], members: int, update: int, shown: Literal["none", "static"] = "none"
    ) -> RolloutResult:
        """`members` episodes of each task, with `shown` skills in the prompt."""
        static = self._static() if shown == "static" else None
        skill = (lambda trajectory: static.skill(trajectory.family).text) if static else None
        with progress("rollout", len(tasks) * members, console=self.console) as advance:
            steps = _steps(advance, len(tasks) * members)
            return self._rollouts.run(tasks, members, update, skill=skill, progress=steps)

    def analyzer(self, kind: str) -> Analyzer:
        """The analyzer of a name, its work dealt to the ranks.

        Raises ValueError for one that the environment does not support.
        """
        return DealtAnalyzer(self._analyzer(kind), self.policy.decoder)

    def evaluate(
        self, split: Split, count: int, shown: Shown = "none", plain: Evaluation | None = None
    ) -> Evaluation:
        """Success on the first `count` tasks of a panel, with `shown` skills in the prompt.

        own, policy   the scripted analyzer's (the policy's) skill from an episode of the same task without a
                      skill; `plain` is such an evaluation, if there is one already
        oracle        the environment's own knowledge of the task
        """
        tasks, earlier = panel(split, count), Counter[str]()
        if shown in ("own", "policy"):
            if plain is None:
                plain = self.evaluate(split, count)
                earlier.update(plain.incidents)
            skills = self._hindsight(plain.trajectories, "scripted" if shown == "own" else "policy")
        else:
            skills = self._given(tasks, shown)
        if shown != "none":
            tasks = [task for task in tasks if task.seed in skills]
        texts = {seed: skill.text for seed, skill in skills.items() if skill.valid}
        with progress(f"evaluate, {shown} skill", len(tasks), console=self.console) as advance:
            rate, result = self._rollouts.evaluate(
                tasks,
                EVALUATION,
                skill=(lambda trajectory: texts.get(trajectory.seed, "")) if texts else None,
                progress=_steps(advance, len(tasks)),
            )
        found = earlier + result.incidents + self.take_incidents()
        return Evaluation(split, shown, rate, result.trajectories, skills, found)

    def skills_right(self, trajectories: Sequence[Trajectory], skills: Sequence[Skill]) -> float | None:
        """Share of skills that the environment confirms (no invalid one); None if it cannot tell.

        One that it could not be asked about is counted as an incident, and not here.
        """
        if not hasattr(self.environment, "skill_is_right"):
            return None
        valid = [(t, skill) for t, skill in zip(trajectories, skills, strict=True) if skill.valid]
        answers = self._knowledge.answers(
            [Question(Task(t.split, t.seed), "skill_is_right", (skill.text,)) for t, skill in valid]
        )
        asked = len(skills) - answers.count(None)
        return sum(map(bool, answers)) / asked if asked else None

    def take_incidents(self) -> Counter[str]:
        """What has gone wrong, on all ranks, beside rollouts or since the last."""
        known = sum(parallel.gather(self._knowledge.take_counts()), Counter[str]())
        return known + self._rollouts.take_worker_counts()

    def _hindsight(self, trajectories: list[Trajectory], kind: str) -> dict[int, Skill]:
        skills = self.analyzer(kind).analyze(trajectories)
        return {t.seed: skill for t, skill in zip(trajectories, skills, strict=True)}

    def _given(self, tasks: Sequence[Task], shown: Shown) -> dict[int, Skill]:
        if shown == "none":
            return {}
        if shown == "oracle" and not hasattr(self.environment, "oracle_skill"):
            raise ValueError(f"eval.skill: environment {self.config.env.name!r} has no oracle_skill")
        method = "oracle_skill" if shown == "oracle" else ""
        answers = self._knowledge.answers([Question(task, method) for task in tasks])
        if tasks and all(answer is None for answer in answers):
            raise RuntimeError("no task of the panel can be asked for its skill; see the warnings above")
        return {
            task.seed: self._skill(answer, shown)
            for task, answer in zip(tasks, answers, strict=True)
            if answer is not None
        }

    def _skill(self, answer: str, shown: Shown) -> Skill:
        return Skill(text=answer, analyzer="oracle") if shown == "oracle" else self._static().skill(answer)

    def _analyzer(self, kind: str) -> Analyzer:
        answers = run_folder(self.config).answers
        return build_analyzer(
            kind, self.config, self.policy.chat, self.generator, self.environment, answers
        )

    def _static(self) -> StaticAnalyzer:
        static = self._analyzer("static")
        assert isinstance(static, StaticAnalyzer)
        return static


def _steps(advance: Callable[[int], None], total: int) -> Callable[[int, int], None]:
    """Turns this rank's (finished, all) episodes into steps of a progress line; its share stands for all."""
    seen = 0

    def report(finished: int, own: int) -> None:
        nonlocal seen
        done = finished * total // max(own, 1)
        advance(done - seen)
        seen = done

    return report
