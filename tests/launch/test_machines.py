"""A run on several machines, each with an address of its own, over a slow link."""

import subprocess
import sys

import pytest
from support.cli import TINY, environment, run, summary
from support.machines import two_machines

pytestmark = pytest.mark.slow

CHOSEN = (*TINY, "train.max_steps=4", "eval.every_epochs=0", "threads=1", "method=pipedream", "partition.stages=2")


def test_two_machines_train_with_the_bits_of_one(tmp_path):
    with two_machines() as machines:
        nodes = [
            subprocess.Popen(
                machine.command(
                    sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={rank}",
                    "--nproc-per-node=1", f"--master-addr={machines[0].address}", "--master-port=29500",
                    "-m", "pipetrain", "run", *CHOSEN, "hydra.run.dir=run",
                ),
                cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank, machine in enumerate(machines)
        ]  # fmt: skip
        said = [node.communicate(timeout=250)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    run(tmp_path / "simulated", *CHOSEN, "executor=simulated")
    for name in ("status", "steps", "weights_sha256", "loss_sha256"):
        assert summary(tmp_path / "run")[name] == summary(tmp_path / "simulated")[name], name
