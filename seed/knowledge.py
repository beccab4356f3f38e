"""What an environment knows of its tasks: the family, an oracle's skill, whether a skill is right.

It is asked in a worker if there are any, since a reset may hang here as it may in a rollout. As there, a task
that fails is asked for once more in a fresh environment, then left unanswered and counted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sprout.engine import parallel
from sprout.seed.episode import EpisodeError, Task, guarded
from sprout.seed.workers import Make, WorkerEnvironment, WorkerError

log = logging.getLogger(__name__)
ATTEMPTS = 2


@dataclass(frozen=True)
class Question:
    """About a task: its family, or what the environment's `method` gives once it is reset to it."""

    task: Task
    method: str = ""
    arguments: tuple[Any, ...] = ()


class Knowledge:
    """Asks an environment of `make`, which never plays."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._counts: Counter[str] = Counter()
        self._environment: Any = make()
        if isinstance(self._environment, WorkerEnvironment):
            self._open(self._environment)

    def answers(self, questions: Sequence[Question]) -> list[Any]:
        """An answer to every question, None where the environment failed; the ranks share them out."""
        return parallel.share(questions, lambda own: [self._answer(question) for question in own])

    def take_counts(self) -> Counter[str]:
        """This rank's `retries` and `unanswered` questions since the last call."""
        counts = Counter(self._counts)
        self._counts.clear()
        return counts

    @staticmethod
    def _open(environment: WorkerEnvironment) -> None:
        """Raises ValueError if there can be no such environment: now, not after every group was dropped."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                environment.open()
                return
            except WorkerError as error:
                if attempt == ATTEMPTS:
                    raise ValueError(f"the environment cannot be made: {error}") from error

    def _answer(self, question: Question) -> Any:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return guarded(self._asked, question)
            except EpisodeError as error:
                what = question.method or "family"
                log.warning("task %s, %s, attempt %d: %s", question.task.group, what, attempt, error)
            with suppress(Exception):  # one that is broken may not even close
                self._environment.close()
            self._environment = None
            self._counts["retries"] += attempt < ATTEMPTS
        self._counts["unanswered"] += 1
        return None

    def _asked(self, question: Question) -> Any:
        if self._environment is None:
            self._environment = self._make()
        environment = self._environment
        _, info = environment.reset(**question.task.start)
        if not question.method:
            return info["family"]
        if isinstance(environment, WorkerEnvironment):
            return environment.ask(question.method, *question.arguments)
        return getattr(environment, question.method)(*question.arguments)
