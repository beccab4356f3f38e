"""Rollouts: groups of episodes, played together through one continuously batched generator.

As soon as a response is complete its environment steps, the session grows by the closing, the observation and
the next opening, and the next turn is submitted. Nothing depends on the order in which responses finish:
sampling is keyed by (run seed, update, task, member, turn), and results come in the order of the tasks.

With several ranks each plays its share of the tasks with the whole weights, and all get the episodes of all.

An exception in an environment, or its death in a worker, says nothing about the policy. The episode is played
once more in a fresh environment with the same seed and the same keys; if that fails too, its whole group is
dropped and counted.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import gymnasium
import numpy as np

from sprout.engine import parallel
from sprout.engine.chat import ChatFormat
from sprout.engine.generator import Completion, Generator, Session
from sprout.engine.rng import derive_key
from sprout.engine.stopping import StopStrings
from sprout.seed.episode import Episode, EpisodeError, Task
from sprout.seed.schema import Config
from sprout.seed.statistics import SuccessRate, success_rate
from sprout.seed.trajectory import Trajectory
from sprout.seed.workers import WorkerEnvironment, Workers

log = logging.getLogger(__name__)
SkillInPrompt = Callable[[Trajectory], str]
Progress = Callable[[int, int], None]
ATTEMPTS = 2


@dataclass
class RolloutResult:
    """Trajectories of whole groups, ordered by task, then member; `incidents` count what went wrong."""

    trajectories: list[Trajectory] = field(default_factory=list)
    incidents: Counter[str] = field(default_factory=Counter)


@dataclass
class Group:
    """What came of a task: its episodes by member, or why it was dropped; what went wrong on the way."""

    trajectories: list[Trajectory] = field(default_factory=list)
    failure: str = ""
    retries: int = 0
    context_overflows: int = 0


def training_tasks(run_seed: int, update: int, count: int, split: str = "train") -> list[Task]:
    """The tasks of an update, from run seed and update alone: a resumed run plays the same ones."""
    return [Task(split, derive_key(run_seed, "task", update, index) % 2**31) for index in range(count)]


def panel(split: str, count: int) -> list[Task]:
    """The fixed evaluation panel of a split: the same tasks in every run."""
    return [Task(split, seed) for seed in range(count)]


@dataclass(frozen=True)
class Sampling:
    """How responses are sampled; temperature 0 is greedy."""

    temperature: float
    top_p: float


class Rollouts:
    """Plays groups of episodes of one environment with the generator's present weights.

    `make_environment()` gives a fresh environment. One whose episode is finished is used again, one that
    raised is closed.
    """

    def __init__(
        self,
        generator: Generator,
        chat: ChatFormat,
        make_environment: Callable[[], gymnasium.Env],
        config: Config,
    ) -> None:
        self.generator = generator
        self.chat = chat
        self.make_environment = make_environment
        self.config = config
        self._stop_strings: dict[tuple[str, ...], StopStrings] = {}

    def run(
        self,
        tasks: Sequence[Task],
        members: int,
        update: int,
        *,
        sampling: Sampling | None = None,
        skill: SkillInPrompt | None = None,
        progress: Progress | None = None,
    ) -> RolloutResult:
        """`members` episodes of every task, sampled as the rollout section says unless `sampling` is given.

        skill      asked before every turn with the trajectory so far; its text is in that turn's prompt only
        progress   called with (finished, all) episodes of this rank

        Raises ValueError for a context that leaves no room for a response (unless rollout.context_overflow
        ends such episodes), and RuntimeError when every group was dropped.
        """
        rollout = self.config.rollout
        sampling = sampling or Sampling(rollout.temperature, rollout.top_p)
        if len(set(tasks)) < len(tasks):
            raise ValueError("a task occurs twice in one rollout; its groups would be one group")

        def play(own: list[Task]) -> list[Group]:
            playing = _Play(self, own, members, update, sampling, skill)
            try:
                return playing.run(progress or (lambda finished, all_: None))
            finally:
                playing.close()

        with parallel.whole(self.generator.decoder):
            result = _result(parallel.share(tasks, play))
        result.incidents.update(self.take_worker_counts())
        return result

    def evaluate(
        self,
        tasks: Sequence[Task],
        update: int,
        *,
        sampling: Sampling | None = None,
        skill: SkillInPrompt | None = None,
        progress: Progress | None = None,
    ) -> tuple[SuccessRate, RolloutResult]:
        """Success over a panel, one episode per task, sampled as the eval section says.

        A task that had to be dropped counts neither as a success nor as a failure.
        """
        sampling = sampling or Sampling(self.config.eval.temperature, self.config.eval.top_p)
        result = self.run(tasks, 1, update, sampling=sampling, skill=skill, progress=progress)
        return success_rate(result.trajectories), result

    def take_worker_counts(self) -> Counter[str]:
        """`worker_restarts` and `timeouts` of all ranks since the last call or run."""
        workers = self.make_environment
        own = workers.take_counts() if isinstance(workers, Workers) else Counter[str]()
        return sum(parallel.gather(own), Counter())

    def stop_strings(self, environment: gymnasium.Env) -> StopStrings | None:
        """What ends a response beside the stop id: an environment may have a tuple `stop_strings`."""
        strings = tuple(getattr(environment, "stop_strings", ()))
        if strings and strings not in self._stop_strings:
            vocabulary = self.generator.decoder.config.vocab_size
            self._stop_strings[strings] = StopStrings(strings, self.chat, vocabulary)
        return self._stop_strings.get(strings)


@dataclass
class _Live:
    """An episode with its session; `spare` is the last turn's, kept until its pages have served the next."""

    episode: Episode
    task: Task
    member: int
    attempt: int
    session: Session | None = None
    spare: Session | None = None


class _Play:
    """The state of one `Rollouts.run`."""

    def __init__(
        self,
        rollouts: Rollouts,
        tasks: Sequence[Task],
        members: int,
        update: int,
        sampling: Sampling,
        skill: SkillInPrompt | None,
    ) -> None:
        self.rollouts, self.sampling, self.skill = rollouts, sampling, skill
        self.tasks, self.members, self.update = tasks, members, update
        self.generator, self.layout = rollouts.generator, rollouts.config.rollout
        self.waiting = deque((task, member, 1) for task in tasks for member in range(members))
        self.live: dict[tuple[Task, int], _Live] = {}
        self.finished: dict[tuple[Task, int], Trajectory] = {}
        self.environments: list[gymnasium.Env] = []
        self.idle: list[gymnasium.Env] = []
        self.groups = {task: Group() for task in tasks}

    def run(self, progress: Progress) -> list[Group]:
        while self.waiting or self.live:
            while self.waiting and len(self.live) < self.layout.max_episodes:
                self._fill(self.layout.max_episodes - len(self.live))
            owner = {live.session: live for live in self.live.values()}
            completed = [(owner[completion.session], completion) for completion in self.generator.step()]
            for live, completion in completed:
                live.episode.begin(completion)
            for live, completion in completed:
                if self.live.get((live.task, live.member)) is live:
                    self._advance(live, completion)
            progress(len(self.finished), len(self.tasks) * self.members)
        for task, group in self.groups.items():
            if not group.failure:
                group.trajectories = [self.finished[task, member] for member in range(self.members)]
        return list(self.groups.values())

    def close(self) -> None:
        """Free every session and environment, whatever state they are in."""
        for live in list(self.live.values()):
            self._leave(live)
        for environment in list(self.environments):
            self._discard(environment)

    def _fill(self, room: int) -> None:
        """Start the next `room` episodes; workers reset theirs side by side."""
        starting: list[tuple[gymnasium.Env, Task, int, int]] = []
        while self.waiting and len(starting) < room:
            task, member, attempt = self.waiting.popleft()
            environment = self._environment(fresh=attempt > 1)
            if isinstance(environment, WorkerEnvironment):
                environment.reset_async(**task.start)
            starting.append((environment, task, member, attempt))
        for environment, task, member, attempt in starting:
            if self.groups[task].failure:  # of a member that began before
                self._discard(environment)
            else:
                self._start(environment, task, member, attempt)

    def _start(self, environment: gymnasium.Env, task: Task, member: int, attempt: int) -> None:
        config = self.rollouts.config
        try:
            episode = Episode(
                environment, self.rollouts.chat, self.layout, name=config.env.name, task=task, member=member,
                update=self.update, max_turns=config.env.max_turns, skill=self.skill,
            )  # fmt: skip
        except EpisodeError as error:
            self._failed(environment, task, member, attempt, error)
            return
        self.live[task, member] = live = _Live(episode, task, member, attempt)
        self._submit(live)

    def _advance(self, live: _Live, completion: Completion) -> None:
        if live.spare is not None:
            self.generator.close(live.spare)
            live.spare = None
        try:
            live.episode.advance(completion)
        except EpisodeError as error:
            self._leave(live)
            self._failed(live.episode.environment, live.task, live.member, live.attempt, error)
            return
        if live.episode.done:
            self._finish(live)
        else:
            self._submit(live)

    def _submit(self, live: _Live) -> None:
        """Submit the next turn, in the session there is if the context extends that, else in a new one."""
        context, layout = live.episode.context, self.layout
        if len(context) + layout.max_response_tokens > layout.max_context_tokens:
            self._overflow(live, len(context))
            return
        if live.session is not None and np.array_equal(context[: len(live.session)], live.session.ids):
            live.session.extend(context[len(live.session) :])
        else:
            live.spare, live.session = live.session, self.generator.open(context)
        seed, turn = self.rollouts.config.run.seed, live.episode.turn
        self.generator.submit(
            live.session,
            max_new_tokens=layout.max_response_tokens,
            key=derive_key(seed, self.update, live.task.group, live.member, turn),
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            stop_strings=self.rollouts.stop_strings(live.episode.environment),
        )

    def _overflow(self, live: _Live, tokens: int) -> None:
        if self.layout.context_overflow == "error" or live.episode.turn == 0:
            raise ValueError(
                f"task {live.task.group}, turn {live.episode.turn}: a context of {tokens} and a response of "
                f"{self.layout.max_response_tokens} tokens exceed rollout.max_context_tokens "
                f"({self.layout.max_context_tokens}); raise it, lower env.max_turns, or set "
                "rollout.context_overflow=end_episode"
            )
        self.groups[live.task].context_overflows += 1
        live.episode.finish(truncated=True)
        self._finish(live)

    def _finish(self, live: _Live) -> None:
        self._leave(live)
        self.idle.append(live.episode.environment)
        self.finished[live.task, live.member] = live.episode.trajectory

    def _failed(
        self, environment: gymnasium.Env, task: Task, member: int, attempt: int, error: EpisodeError
    ) -> None:
        """Play the episode again, or drop its group after the last attempt."""
        self._discard(environment)
        log.warning("task %s, member %d, attempt %d: %s", task.group, member, attempt, error)
        if attempt < ATTEMPTS:
            self.groups[task].retries += 1
            self.waiting.appendleft((task, member, attempt + 1))
            return
        # How far the other members came is a matter of timing, so their incidents are not counted.
        self.groups[task] = Group(failure=str(error), retries=attempt - 1)
        self.waiting = deque(item for item in self.waiting if item[0] != task)
        for live in [live for live in self.live.values() if live.task == task]:
            self._leave(live)
            self._discard(live.episode.environment)

    def _leave(self, live: _Live) -> None:
        """Take an episode out of play and close its sessions."""
        del self.live[live.task, live.member]
        for session in (live.session, live.spare):
            if session is not None:
                self.generator.close(session)

    def _environment(self, fresh: bool) -> gymnasium.Env:
        if self.idle and not fresh:
            return self.idle.pop()
        self.environments.append(self.rollouts.make_environment())
        return self.environments[-1]

    def _discard(self, environment: gymnasium.Env) -> None:
        self.environments.remove(environment)
        with suppress(Exception):  # one that is broken may not even close
            environment.close()


def _result(groups: Sequence[Group]) -> RolloutResult:
    failures = [group.failure for group in groups if group.failure]
    if failures and len(failures) == len(groups):
        raise RuntimeError(f"every group was dropped; the last failure: {failures[-1]}")
    incidents = Counter(
        retries=sum(group.retries for group in groups),
        context_overflows=sum(group.context_overflows for group in groups),
        dropped_groups=len(failures),
    )
    return RolloutResult([t for group in groups for t in group.trajectories], incidents)
