"""A long run keeps its memory: what it needs does not grow with its updates."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

UPDATES, WARM = 200, 60  # updates; those before which caches and the allocator's pools still fill


def resident(pid):
    """MB of memory that a process holds now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_does_not_grow_over_200_updates(tiny, tmp_path):
    settings = [f"run.dir={tmp_path}", f"model.path={tiny.folder.stage1_model}", "run.stages=[train]"]
    settings += ["sft.epochs=0", f"train.updates={UPDATES}", "eval.every=50", "train.checkpoint_every=50"]
    command = [sys.executable, "-m", "sprout", "run", "tiny", *settings]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    held = {}
    while process.poll() is None:
        time.sleep(0.05)
        file = tmp_path / "tiny" / "metrics.jsonl"
        update = file.read_bytes().count(b"\n") if file.is_file() else 0
        if update not in held and process.poll() is None:
            held[update] = resident(process.pid)
    assert process.returncode == 0 and max(held) >= UPDATES - 1
    updates, megabytes = np.array([(u, mb) for u, mb in held.items() if u >= WARM]).T
    slope, level = np.polyfit(updates, megabytes, 1)
    print(f"{level:.0f} MB + {slope:.4f} MB per update")
    assert slope * UPDATES < 0.05 * level
