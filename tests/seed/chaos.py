"""`make chaos`: a run on several ranks, killed at random moments again and again, against an undisturbed one.

    python tests/seed/chaos.py [--recipe quickstart] [--ranks 2] [--kills 5] [--seed 0] FOLDER [KEY=VALUE ...]

Every time one of these is drawn: a rank dies, and torchrun starts all again; an environment's worker process
dies; torchrun and all its ranks die at once; the run is asked to end by SIGTERM. After the last two the same
command is given again. At the end checkpoints, episodes, scores, evaluations and metrics must be those of the
undisturbed run, bit for bit, but for the counts of what was killed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from test_resume import assert_same_checkpoint, contents, metrics

KINDS = ("rank", "worker", "everything", "sigterm")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
COUNTS = ("worker_restarts", "retries", "timeouts")  # of what was killed
IN_TRAINING = ("trajectories/*", "scores/*")
POLL_S = 0.2


class Run:
    """A recipe under torchrun, started again until it is finished."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.command = [*TORCHRUN, f"--nproc-per-node={arguments.ranks}", f"--max-restarts={arguments.kills}"]
        self.command += ["-m", "sprout", "run", arguments.recipe, f"run.dir={folder}", "run.name=run"]
        self.command += ["run.resume=true", "env.workers=1", *arguments.overrides]
        self.folder = folder / "run"
        self.log = folder / "log.txt"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.start()

    def start(self) -> None:
        """Give the command (again)."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log
            )

    def is_finished(self) -> bool:
        """Whether it has ended well; raises SystemExit if it has ended otherwise by itself."""
        code = self.process.poll()
        if code:
            sys.exit(f"the run ended with code {code}; see {self.log}")
        return code == 0

    def strike(self, kind: str, draw: random.Random) -> bool:
        """Kill what `kind` says; False if there is nothing of it at this moment."""
        ranks = [pid for pid in children(self.process.pid) if "sprout" in command_line(pid)]
        workers = [pid for rank in ranks for pid in children(rank) if "serve(" in command_line(pid)]
        if kind in ("rank", "worker"):
            return kill(draw.choice(found)) if (found := ranks if kind == "rank" else workers) else False
        if kind == "everything":
            for pid in (self.process.pid, *ranks):
                kill(pid)
        else:
            self.process.terminate()
        self.process.wait()
        self.start()
        return True


def children(pid: int) -> list[int]:
    """Processes that a process has started; none if it is gone."""
    try:
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except FileNotFoundError:
        return []


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except FileNotFoundError:
        return ""


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def undisturbed(run: Run) -> float:
    """Let it finish; how long it took."""
    began = time.monotonic()
    while not run.is_finished():
        time.sleep(POLL_S)
    return time.monotonic() - began


def disturbed(run: Run, kills: int, seconds: float, draw: random.Random) -> list[str]:
    """Let it finish between `kills` kills, about evenly over `seconds`; what was killed."""
    struck: list[str] = []
    deadline = time.monotonic() + pause(kills, seconds, draw)
    kinds = [KINDS[i % len(KINDS)] for i in range(kills)]
    draw.shuffle(kinds)
    while not run.is_finished():
        time.sleep(POLL_S)
        if kinds and time.monotonic() > deadline and run.strike(kinds[-1], draw):
            struck.append(kinds.pop())
            print(f"killed: {struck[-1]}", flush=True)
            deadline = time.monotonic() + pause(kills, seconds, draw)
    return struck


def pause(kills: int, seconds: float, draw: random.Random) -> float:
    return draw.uniform(0.5, 1.5) * seconds / (kills + 1)


def differences(ours: Path, theirs: Path) -> list[str]:
    """What is not the same in two finished runs, by name."""
    found = []
    try:
        assert_same_checkpoint(ours / "checkpoints", theirs / "checkpoints")
    except AssertionError as error:
        found.append(f"checkpoints: {error}")
    if without_counts(metrics(ours)) != without_counts(metrics(theirs)):
        found.append("metrics.jsonl")
    found += [p for p in IN_TRAINING if contents(ours, p) != contents(theirs, p)]
    evaluations = [
        {name: without_counts(json.loads(text)) for name, text in contents(run, "evals/*").items()}
        for run in (ours, theirs)
    ]
    return [*found, *(["evals"] if evaluations[0] != evaluations[1] else [])]


def without_counts(value):
    """The same JSON value without the counts of what was killed."""
    if isinstance(value, dict):
        return {k: without_counts(v) for k, v in value.items() if k.split("/")[-1] not in COUNTS}
    return [without_counts(v) for v in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a run at random; it must come out the same.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    plain = Run(arguments, arguments.folder / "undisturbed")
    seconds = undisturbed(plain)
    print(f"undisturbed: {seconds:.0f} s", flush=True)
    struck = Run(arguments, arguments.folder / "disturbed")
    kinds = disturbed(struck, arguments.kills, seconds, random.Random(arguments.seed))
    different = differences(struck.folder, plain.folder)
    print(f"{len(kinds)} kills; different: {', '.join(different) or 'nothing'}")
    sys.exit(1 if different or len(kinds) < arguments.kills else 0)


if __name__ == "__main__":
    main()
