"""One worker process: this side, which starts, asks and replaces it, and `serve`, which is what it runs.

A worker is a new Python process. It imports what its environments need, and holds none of this one's threads,
devices or files but its pipe. When that closes, however this process has ended, it kills itself and all that
it has started. Ctrl-C and SIGTERM do not end it: this process decides.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from subprocess import DEVNULL, Popen
from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from sprout.seed.workers import WorkerEnvironment

log = logging.getLogger(__name__)
ATTRIBUTES = ("system_prompt", "stop_strings")  # what is read of an environment beside its answers
SETTINGS = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}  # of a worker, unless the user has set them
SLICE_S = 1.0  # of a wait


class WorkerProcess:
    """One process, replaced when it dies or is late; `environments` are those alive in it, by number."""

    def __init__(self, make: bytes, limits: dict[str, float], counts: Counter[str]) -> None:
        self.environments: dict[int, WorkerEnvironment] = {}
        self._make, self._limits, self._counts = make, limits, counts
        self._process: Popen[bytes] | None = None
        self._waiting: deque[tuple[int, str]] = deque()  # requests without an answer, the oldest first
        self._since = 0.0  # when the oldest one's turn came

    def start(self) -> None:
        """Start the process unless it runs; it gets ready by itself."""
        if self._process is not None:
            return
        self._connection, theirs = Pipe()
        with theirs:
            program = f"from {__name__} import serve; serve({theirs.fileno()})"
            self._process = Popen(
                [sys.executable, "-P", "-c", program], stdin=DEVNULL, pass_fds=[theirs.fileno()],
                process_group=0, env={**SETTINGS, **os.environ},
            )  # fmt: skip
        self._ready = select.poll()
        self._ready.register(self._connection, select.POLLIN)
        self._send(sys.path)
        self._send(self._make)

    def post(self, number: int, call: str, *arguments: Any) -> None:
        """Ask without waiting. What has ended with its process needs no closing in another."""
        if self._process is None and call == "close":
            return
        self.start()
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append((number, call))
        self._send((number, call, arguments))

    def settle(self) -> None:
        """Take what has been answered. If the process died while nobody waited, nobody is to blame."""
        while self._process is not None and self._ready.poll(0):
            if self._waiting:
                self.receive()
            else:
                self._replace(None, f"an environment's worker {self.stop()}")

    def receive(self) -> None:
        """Take the oldest request's answer; without one its environment fails and the process is replaced."""
        number, call = self._waiting[0]
        limit = self._limits[call]
        try:
            left = self._since + limit - time.monotonic()
            if self._is_ready_within(left):
                answer = _unpickled(self._connection.recv_bytes())
            else:
                self._counts["timeouts"] += 1
                self.stop()
                key = "env.reset_timeout_s" if call in ("open", "reset") else "env.step_timeout_s"
                self._replace(number, f"no answer to {call} in {limit:g} s ({key})")
                return
        except (EOFError, OSError):
            self._replace(number, f"its worker {self.stop()} in {call}")
            return
        except BaseException:  # half an answer may have been read
            self.stop()
            raise
        self._waiting.popleft()
        self._since = time.monotonic()
        if number in self.environments:
            self.environments[number].take(*answer)

    def _is_ready_within(self, seconds: float) -> bool:
        """Waits in slices: a signal right before a wait does not end it, and Ctrl-C would be late."""
        until = time.monotonic() + seconds
        while not self._ready.poll(1e3 * min(max(until - time.monotonic(), 0.0), SLICE_S)):
            if time.monotonic() >= until:
                return False
        return True

    def stop(self) -> str:
        """End the process and all that it has started; how it ended, if it had before."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self._connection.close()
        self._process = None
        self._waiting.clear()
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    def finish(self, until: float) -> None:
        """End the process, once all is closed or `until` has come."""
        if self._process is not None:
            with suppress(EOFError, OSError):
                while self._waiting and self._ready.poll(1e3 * max(0.0, until - time.monotonic())):
                    self._connection.recv_bytes()
                    self._waiting.popleft()
            self.stop()

    def _replace(self, blamed: int | None, why: str) -> None:
        """Start another process, in which all environments but the blamed one are where they were."""
        self._counts["worker_restarts"] += 1
        if blamed in self.environments:
            self.environments[blamed].fail(why)
        else:
            log.warning("no episode is to blame: %s", why)
        for environment in list(self.environments.values()):
            environment.repeat()

    def _send(self, message: Any) -> None:
        with suppress(OSError):  # a process that is dead is noticed where its answer is read
            self._connection.send(message)


def _unpickled(raw: bytes) -> tuple[bool, Any]:
    try:
        return pickle.loads(raw)
    except Exception as error:
        return False, f"its answer cannot be read: {type(error).__name__}: {error}"


def serve(descriptor: int) -> None:
    """What a worker does: answer requests as they come, until the pipe closes."""
    os.set_inheritable(descriptor, False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, not passed on to what it starts
    connection, messages = Connection(descriptor), SimpleQueue[Any]()
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    sys.path[:], make = messages.get(), messages.get()
    environments: dict[int, gymnasium.Env] = {}
    while True:
        number, call, arguments = messages.get()
        try:
            answer = pickle.dumps((True, _perform(environments, make, number, call, arguments)))
        except BaseException as error:
            answer = pickle.dumps((False, f"{type(error).__name__}: {error}"))
        connection.send_bytes(answer)


def _listen(connection: Connection, messages: SimpleQueue[Any]) -> None:
    """Hand over messages, also while an environment works or hangs, so that a closed pipe is noticed."""
    with suppress(EOFError, OSError):
        while True:
            messages.put(connection.recv())
    os.killpg(os.getpid(), signal.SIGKILL)


def _perform(
    environments: dict[int, gymnasium.Env], make: bytes, number: int, call: str, arguments: Any
) -> Any:
    """The result of a call, with the environment's attributes after a reset.

    Whoever repeats a call compares results without their last part, which may tell of times.
    """
    if call == "close":
        if number in environments:
            environments.pop(number).close()
        return None
    if call == "step":
        return environments[number].step(*arguments), {}
    if call == "ask":
        method, *given = arguments
        return (getattr(environments[number], method)(*given), None), {}
    if number not in environments:
        environments[number] = pickle.loads(make)()
    if call == "open":
        return (None,), {}
    environment, (seed, options) = environments[number], arguments
    answer = environment.reset(seed=seed, options=options)
    return answer, {name: getattr(environment, name) for name in ATTRIBUTES if hasattr(environment, name)}
