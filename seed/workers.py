"""Environments in worker processes, for those that may die or hang.

`Workers` is called as an environment's constructor is. What it gives looks like the environment, which lives
in one of a few long-lived processes (`worker_process.py`) and shares it with others. `reset_async` and
`step_async` ask without waiting, so that many episodes step at once; `reset` and `step` then take the answer.

A worker answers in the order it is asked. So when it dies or an answer is late, the oldest request without an
answer is to blame, and its environment raises WorkerError. A new worker repeats for the others what they were
asked since their resets. They notice nothing, unless one answers differently, which fails it too.
"""

from __future__ import annotations

import pickle
import time
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import gymnasium

from sprout.seed.envs import make_env
from sprout.seed.worker_process import WorkerProcess

if TYPE_CHECKING:
    from sprout.seed.schema import EnvSection

Make = Callable[[], gymnasium.Env]
Request = tuple[Any, ...]  # name of a call, its arguments
CLOSING_S = 1.0  # that is waited for environments to close, when all is over
_numbers = count()  # of environments


class WorkerError(Exception):
    """What went wrong with an environment in a worker, as one line."""


def environment_factory(env: EnvSection) -> Make:
    """Gives fresh environments, in `env.workers` processes if there are to be any."""
    make = partial(make_env, env.name, **env.options)
    return Workers(make, env.workers, env.step_timeout_s, env.reset_timeout_s) if env.workers else make


class Workers:
    """Gives environments that live in `workers` processes; these end with this object.

    make   gives an environment; pickled, so a module's class or function, or a `partial` of one
    """

    def __init__(self, make: Make, workers: int, step_timeout_s: float, reset_timeout_s: float) -> None:
        limits = {"open": reset_timeout_s, "reset": reset_timeout_s} | dict.fromkeys(
            ("step", "ask", "close"), step_timeout_s
        )
        self._counts: Counter[str] = Counter()
        self._workers = [WorkerProcess(pickle.dumps(make), limits, self._counts) for _ in range(workers)]
        self.close = weakref.finalize(self, _close, self._workers)

    def __call__(self) -> WorkerEnvironment:
        """A fresh environment, in the worker with the fewest."""
        for worker in self._workers:
            worker.start()  # all at once: each takes a while to import
        return WorkerEnvironment(min(self._workers, key=lambda worker: len(worker.environments)))

    def take_counts(self) -> Counter[str]:
        """`worker_restarts` and `timeouts` since the last call."""
        counts = Counter(self._counts)
        self._counts.clear()
        return counts


class WorkerEnvironment(gymnasium.Env):
    """An environment in a worker. After a WorkerError, `reset` makes another one."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker = worker
        self.asked: list[Request] = []  # since the last reset
        self._answers: list[Any] = []
        self._answered = 0  # by the present worker
        self._begun: Request | None = None  # what was asked by reset_async or step_async
        self._renew()

    def reset_async(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._begin_anew()
        self._ask("reset", seed, options)

    def step_async(self, action: Any) -> None:
        assert self._begun is None, "the answer before has not been taken"
        self._ask("step", action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self._begun != ("reset", seed, options):
            self.reset_async(seed=seed, options=options)
        return self._answer()

    def step(self, action: Any) -> Any:
        if self._begun != ("step", action):
            self.step_async(action)
        return self._answer()

    def open(self) -> None:
        """Make the environment now; without it the first reset does. Raises WorkerError."""
        self._begin_anew()
        self._ask("open")
        self._answer()

    def ask(self, method: str, *arguments: Any) -> Any:
        """What another of its methods gives. Raises WorkerError."""
        self._ask("ask", method, *arguments)
        return self._answer()[0]

    def close(self) -> None:
        self.worker.environments.pop(self.number, None)
        self.worker.post(self.number, "close")

    def repeat(self) -> None:
        """Ask a new worker everything since the reset again."""
        self._answered = 0
        for request in self.asked:
            self.worker.post(self.number, *request)

    def take(self, succeeded: bool, answer: Any) -> None:
        """The answer to the next request: known if it was a repeated one, else new."""
        known = self._answered < len(self._answers)
        if not succeeded:
            self.fail(answer)
        elif known and repr(answer[0][:-1]) != repr(self._answers[self._answered][:-1]):
            self.fail(f"repeated for a new worker, {self.asked[self._answered][0]} had another outcome")
        elif not known:
            result, attributes = answer
            vars(self).update(attributes)
            self._answers.append(result)
        self._answered += 1

    def fail(self, why: str) -> None:
        self._failure = why
        self.worker.environments.pop(self.number, None)

    def _begin_anew(self) -> None:
        """Forget what was asked; after a failure, or with an answer still to come, the environment too."""
        if self._failure or len(self._answers) < len(self.asked):
            self.close()
            self._renew()
        self.asked, self._answers, self._answered = [], [], 0

    def _renew(self) -> None:
        self.number = next(_numbers)
        self._failure = ""
        self.worker.environments[self.number] = self

    def _ask(self, *request: Any) -> None:
        self.worker.settle()  # before the request is one of those to repeat
        self.asked.append(request)
        self._begun = request
        if not self._failure:
            self.worker.post(self.number, *request)

    def _answer(self) -> Any:
        self._begun = None
        while len(self._answers) < len(self.asked) and not self._failure:
            self.worker.receive()
        if self._failure:
            raise WorkerError(self._failure)
        return self._answers[-1]


def _close(workers: list[WorkerProcess]) -> None:
    until = time.monotonic() + CLOSING_S
    for worker in workers:
        worker.finish(until)
