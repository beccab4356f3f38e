"""Ranks: the one-process answers, and two gloo processes against them."""

import os
import re
import socket
import subprocess
import sys

import pytest
import torch

from sprout.engine import parallel

TWO_RANKS = """
import torch
from sprout.engine import parallel
device = parallel.initialize("cpu")
mine = []
doubled = parallel.share(range(5), lambda items: [mine.append(item) or 2 * item for item in items])
dealt = parallel.deal([5, 1, 9, 2, 3])
parallel.barrier()
who = (parallel.rank(), parallel.world_size(), parallel.is_main())
print(*who, mine, doubled, dealt, device.type)
parallel.shutdown()
"""


def test_one_process_is_rank_zero_of_one():
    assert (parallel.rank(), parallel.world_size(), parallel.is_main()) == (0, 1, True)
    assert parallel.share([3, 1, 2], lambda items: [2 * item for item in items]) == [6, 2, 4]
    assert parallel.deal([3, 1, 2]) == [0, 1, 2] and parallel.gather("a") == ["a"]
    assert parallel.master_dtype(torch.bfloat16) == torch.bfloat16
    parallel.barrier()
    parallel.shutdown()


def test_initialize_without_torchrun_joins_no_group(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert parallel.initialize("cpu") == torch.device("cpu")
    assert not torch.distributed.is_initialized()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_missing_cuda_is_a_clear_error():
    with pytest.raises(ValueError, match="no usable CUDA device; set device=cpu"):
        parallel.initialize("cuda")


def two_ranks(script, *arguments):
    """Two gloo processes of a script."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            env={**os.environ, **common, "RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]


def test_two_ranks_deal_every_item_once():
    lines = [process.communicate(timeout=120)[0].strip() for process in two_ranks(TWO_RANKS)]
    assert lines == [
        "0 2 True [0, 2, 4] [0, 2, 4, 6, 8] [1, 2, None] cpu",
        "1 2 False [1, 3] [0, 2, 4, 6, 8] [0, 3, 4] cpu",
    ]


FAILING = """
import os, sys
from sprout.engine import parallel

def fail(items):
    if parallel.rank() == 1:
        raise ValueError("no such thing")
    return items

way = {
    "share": lambda: parallel.share(range(4), fail),
    "alone": lambda: (fail([]), parallel.barrier()),
    "dead": lambda: (os._exit(9) if parallel.rank() == 1 else None, parallel.barrier()),
}
with parallel.ranks():
    way[sys.argv[1]]()
"""


@pytest.mark.parametrize(
    ("way", "teller", "words"),
    [
        ("share", 1, "ValueError: no such thing\nrank 1 of 2"),
        ("alone", 1, "ValueError: no such thing\nrank 1 of 2"),
        ("dead", 0, "another rank has died or hangs; start again with run.resume=true"),
    ],
)
def test_the_first_rank_to_fail_says_why_and_the_others_end_quietly(way, teller, words):
    ranks = two_ranks(FAILING, way)
    said = [re.sub(r"\[rank.\]: ", "", process.communicate(timeout=120)[1]).strip() for process in ranks]
    assert all(process.returncode for process in ranks)
    assert said[teller].endswith(words)
    assert "Traceback" not in said[1 - teller]


@parallel.on_main
def twice(number):
    return 2 * number


def test_a_function_of_rank_zero_is_an_ordinary_one_in_a_single_process():
    assert twice(3) == 6 and twice.__name__ == "twice"
    with parallel.ranks():
        assert parallel.is_main()


DIES_ONCE = """
import os
from sprout.engine import parallel

with parallel.ranks():
    parallel.barrier()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and parallel.rank() == 1:
        os.kill(os.getpid(), 9)
    parallel.barrier()
    print(f"through {parallel.rank()}\\n", end="", flush=True)  # in one piece: both ranks write to one pipe
"""


def test_ranks_that_torchrun_restarts_meet_again(tmp_path):
    (tmp_path / "program.py").write_text(DIES_ONCE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["--max-restarts=1", str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and {"through 0", "through 1"} == set(done.stdout.split("\n")) - {""}
