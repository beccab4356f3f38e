"""Two gloo ranks against one process: the same losses and weights, whatever each rank had to do."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

PROGRAM = Path(__file__).with_name("ranks_program.py")


def run(folder, ranks, *arguments):
    """`ranks` processes of the program, as torchrun would start them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), *arguments],
            env={**os.environ, **(common | {"RANK": str(r), "LOCAL_RANK": str(r)} if ranks > 1 else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for r in range(ranks)
    ]
    outputs = [process.communicate(timeout=500)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)


def same(one, two, dtype):
    """Equal weights, each tensor up to 1e-6 of its norm (in bfloat16: one rounding)."""
    tolerance = 1e-6 if dtype == "float32" else 2**-8
    weights = load_file(two / "model" / "model.safetensors")
    for name, tensor in load_file(one / "model" / "model.safetensors").items():
        difference = (weights[name].float() - tensor.float()).norm() / tensor.float().norm()
        assert difference <= tolerance, f"{name}: {difference:.1e}"


@pytest.mark.parametrize("method", ["adamw", "muon"])
def test_two_ranks_learn_what_one_process_learns(tmp_path, method):
    for ranks in (1, 2):
        run(tmp_path / f"{ranks}", ranks, method, "float32", "0", "3")
    same(tmp_path / "1" / "step-000003", tmp_path / "2" / "step-000003", "float32")
    one, two = (
        torch.tensor([float(line) for line in (tmp_path / ranks / "losses").read_text().split()])
        for ranks in ("1", "2")
    )
    torch.testing.assert_close(two, one, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_number_of_ranks_goes_on_from_a_checkpoint(tmp_path, dtype):
    run(tmp_path / "straight", 1, "adamw", dtype, "0", "3")
    folder = tmp_path / "changing"
    for step, ranks in enumerate((2, 1, 2)):
        run(folder, ranks, "adamw", dtype, str(step), str(step + 1))
    same(tmp_path / "straight" / "step-000003", folder / "step-000003", dtype)
