"""A run on several machines, each with an address of its own, over a slow link."""

import contextlib
import subprocess
import time

import pytest
import two_machines
from support.cli import TINY, environment, run_here, summary

pytestmark = pytest.mark.slow

CHOSEN = (*TINY, "eval.every_epochs=0", "threads=1", "method=pipedream", "partition.stages=2")


@contextlib.contextmanager
def machines():
    """Two machines; the test is skipped where they cannot be made."""
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(two_machines.two_machines())
        except two_machines.NotAllowedError as error:
            pytest.skip(str(error))
        yield made


def start(both, folder, *words):
    """A launcher on each machine."""
    return [
        subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command in two_machines.torchrun(both, *CHOSEN, *words, "hydra.run.dir=run")
    ]


def test_two_machines_train_with_the_bits_of_one(tmp_path):
    with machines() as both:
        nodes = start(both, tmp_path, "train.max_steps=4")
        said = [node.communicate(timeout=250)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    run_here(tmp_path / "simulated", *CHOSEN, "train.max_steps=4", "executor=simulated")
    for name in ("status", "steps", "weights_sha256", "loss_sha256"):
        assert summary(tmp_path / "run")[name] == summary(tmp_path / "simulated")[name], name


def test_both_sides_of_cut_link_end_and_name_the_other(tmp_path):
    metrics = tmp_path / "run" / "metrics.jsonl"
    with machines() as both:
        nodes = start(both, tmp_path, "train.epochs=10000", "launch.hang_timeout=5")
        until = time.monotonic() + 180
        while not (metrics.exists() and "interval" in metrics.read_text()):
            assert time.monotonic() < until, "not begun"
            time.sleep(0.2)
        both[1].cut_off()
        first, second = (node.communicate(timeout=60)[0] for node in nodes)
    assert [node.returncode for node in nodes] == [1, 1]
    assert "pipetrain: error: stage 1 hung: no sign of life for 5 s; logs in" in first
    assert "pipetrain: error: process 1 has not reached the machine of the first process for 5 s" in second
    assert summary(tmp_path / "run")["status"] == "failed"
