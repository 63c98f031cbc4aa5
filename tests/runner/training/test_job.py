"""The job of a run: what its processes receive."""

import pickle
from dataclasses import replace

from support.worker_pool import job, on


def test_job_reaches_another_process_whole(tmp_path):
    made = job(tmp_path / "run", "pipemare", 3, train={"recompute": True})
    received = pickle.loads(pickle.dumps(made))
    assert received.run.path == made.run.path
    assert replace(received, run=made.run) == made


def test_head_of_a_summary_says_what_was_chosen(tmp_path):
    made = on("simulated", job(tmp_path / "run", "pipemare", 3))
    assert made.num_stages == 3
    assert made.head() == {
        "method": "pipemare", "schedule": "pipemare", "model": "small", "dataset": "synthetic_images",
        "executor": "simulated", "stages": 3,
    }  # fmt: skip
