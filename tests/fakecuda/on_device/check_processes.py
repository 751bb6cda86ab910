"""Two processes with a GPU of host memory each, by the calls of torch that are made on real ones.

Tensors go through the group of processes that torch uses for NCCL, which gloo carries here. The
second process has cuda:1 and may not touch cuda:0. Networks with batch norm are left out: torch's
SyncBatchNorm has kernels for GPUs alone.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fakecuda import gpu, runs
from fakecuda.kernels import stand_ins
from torchcaps.distributed import hard_exit, init
from torchcaps.training import Interrupted, Run, train

SYSTEM = "capsnet"
WORLD_SIZE = 2
CODE = """
from fakecuda import gpu
from fakecuda.on_device import check_processes
check_processes.main()
"""
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def train_rank(folder, precision):
    """Train with a stop and a resumption; write where the tensors of this process were."""
    config = runs.settings(SYSTEM, precision)
    with stand_ins(), init(os.environ, "cuda") as ranks:
        try:
            train(config, folder, callbacks=[runs.StopAfter(runs.STOPPED_AFTER)])
        except Interrupted:
            train(config, folder, resume=True)
        report = {
            "device": str(torch.zeros(1, device="cuda").device),
            "backend": torch.distributed.get_backend(),
            "bytes": gpu.device.memory()[1],
        }
        Path(f"{folder}-{ranks.rank}.json").write_text(json.dumps(report))


def main():
    """The work of a process."""
    train_rank(*sys.argv[1:])
    hard_exit(0)


def free_port():
    """A port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def run_ranks(folder, precision):
    """Start a process for each rank, and return what they print."""
    common = {"WORLD_SIZE": WORLD_SIZE, "LOCAL_WORLD_SIZE": WORLD_SIZE}
    common |= {"MASTER_ADDR": "localhost", "MASTER_PORT": free_port()}
    processes = []
    for rank in range(WORLD_SIZE):
        variables = common | {"RANK": rank, "LOCAL_RANK": rank}
        environment = os.environ | {name: str(word) for name, word in variables.items()}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", CODE, str(folder), precision],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return [process.communicate()[1] for process in processes]


def test_two_gpus_train_as_one_does(tmp_path):
    messages = run_ranks(tmp_path / "two", "fp32")
    for rank in range(WORLD_SIZE):
        report = tmp_path / f"two-{rank}.json"
        assert report.exists(), "\n".join(messages)
        facts = json.loads(report.read_text())
        assert facts["device"] == f"cuda:{rank}"
        assert facts["bytes"] > 1e6
    with stand_ins():
        train(runs.settings(SYSTEM, "fp32"), tmp_path / "one")
    losses = [Run(tmp_path / name).epochs[0]["train_loss"] for name in ("one", "two")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    weights, expected = (
        load_file(tmp_path / name / "model.safetensors") for name in ("two", "one")
    )
    torch.testing.assert_close(weights, expected, rtol=1e-3, atol=1e-4)


def test_two_gpus_train_with_a_scale_of_losses(tmp_path):
    """The losses are not those of one: half of a batch has larger gradients, which may overflow."""
    messages = run_ranks(tmp_path / "two", "fp16")
    assert (tmp_path / "two-1.json").exists(), "\n".join(messages)
    assert Run(tmp_path / "two").epochs[0]["train_loss"] < 1
