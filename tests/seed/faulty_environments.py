"""What test_workers.py plays: workers import it, so it needs no torch."""

import gc
import os
import signal
import subprocess
import time
from pathlib import Path

import gymnasium

from sprout.seed.envs.household import HouseholdEnv
from sprout.seed.workers import Workers

RESET = 0


class Rooms(gymnasium.Env):
    """Ends after 2 to 4 turns; what it says depends on everything said before.

    faults   seed -> (what happens, in which call: RESET or the number of the step, how many times); the times
             are counted in `folder`, since whoever did it may be gone
    """

    system_prompt = "put it in ."

    def __init__(self, folder="", faults=None):
        self.folder, self.faults = Path(folder), faults or {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.task, self.turn, self.said = seed, RESET, 0
        self._strike()
        return f"you see pen {seed % 3 + 1} .", {"task": "put a mug .", "family": ("put", "look")[seed % 2]}

    def step(self, action):
        self.turn += 1
        self._strike()
        self.said += len(action)
        done = self.turn >= 2 + self.task % 3
        info = {"valid": len(action) % 2 == 0, "success": done and self.said % 2 == 0}
        return f"you see shelf {self.said % 3 + 1} .", float(info["success"]), done, False, info

    def _strike(self):
        what, when, times = self.faults.get(self.task, ("", RESET, 0))
        struck = len(list(self.folder.glob(f"{self.task}-*"))) if times else 0
        if when == self.turn and struck < times:
            (self.folder / f"{self.task}-{struck}").touch()
            FAULTS[what]()


def _raise():
    raise OSError("the socket is gone")


FAULTS = {
    "raise": _raise,
    "hang": lambda: time.sleep(3600),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
}


class Odd(Rooms):
    """What is asked of it beyond playing: how it is started, told, closed, counted."""

    stop_strings = ("open", "it")

    def __init__(self, folder="", faults=None):
        super().__init__(folder, faults)
        self.system_prompt = "put a pen in ."

    def step(self, action):
        if action == "child":
            self.child = subprocess.Popen(["sleep", "3600"])
            answer = str(self.child.pid)
        else:
            answer = {
                "pid": lambda: str(os.getpid()),
                "forget": lambda: str(time.monotonic_ns()),
                "live": lambda: str(sum(isinstance(o, Odd) for o in gc.get_objects())),
                "hang": FAULTS["hang"],
                "unreadable": lambda: Unreadable(),
                "unsendable": lambda: lambda: None,
            }[action]()
        return answer, 0.0, False, False, {"valid": True, "success": False}

    def close(self):
        if self.folder != Path():
            (self.folder / f"closed-{os.getpid()}-{id(self)}").touch()


class Unreadable:
    """Pickles, but cannot be made again."""

    def __reduce__(self):
        return (_raise, ())


def broken():
    raise FileNotFoundError("no games in /data")


def holder(how):
    """A program with a worker that hangs and has a child; prints their ids, then ends as `how` says."""
    workers = Workers(Odd, 1, 60, 60)
    environment = workers()
    environment.reset(seed=1)
    pids = [environment.step(name)[0] for name in ("pid", "child")]
    environment.step_async("hang")
    time.sleep(0.2)
    print(*pids, flush=True)
    if how == "error":
        raise RuntimeError("over")
    if how in ("ctrl-c", "kill"):
        environment.step("hang")


class FaultyHousehold(HouseholdEnv):
    """Household that is struck in the reset to a task.

    faults   "split-seed" -> (what happens, how many times)
    """

    def __init__(self, folder, faults, **options):
        super().__init__(**options)
        self.folder, self.faults = Path(folder), faults

    def reset(self, *, seed=None, options=None):
        task = f"{options['split']}-{seed}"
        what, times = self.faults.get(task, ("", 0))
        struck = len(list(self.folder.glob(f"{task}-struck-*")))
        if struck < times:
            (self.folder / f"{task}-struck-{struck}").touch()
            FAULTS[what]()
        return super().reset(seed=seed, options=options)


def never():
    time.sleep(3600)
