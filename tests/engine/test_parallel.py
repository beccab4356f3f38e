"""Ranks: the one-process answers, and two gloo processes against them."""

import os
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


def test_two_ranks_deal_every_item_once():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_RANKS],
            env={**os.environ, **common, "RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    lines = [process.communicate(timeout=120)[0].strip() for process in ranks]
    assert lines == [
        "0 2 True [0, 2, 4] [0, 2, 4, 6, 8] [1, 2, None] cpu",
        "1 2 False [1, 3] [0, 2, 4, 6, 8] [0, 3, 4] cpu",
    ]
