"""What processes are told of a run."""

import pickle

from support.worker_pool import job, on


def test_job_reaches_another_process_whole(tmp_path):
    made = job(tmp_path / "run", "pipemare", 3, train={"recompute": True})
    assert pickle.loads(pickle.dumps(made)) == made


def test_head_of_a_summary_says_what_was_chosen(tmp_path):
    made = on("simulated", job(tmp_path / "run", "pipemare", 3))
    assert made.num_stages == 3
    assert made.head() == {
        "method": "pipemare", "schedule": "pipemare", "model": "small", "dataset": "synthetic_images",
        "executor": "simulated", "stages": 3,
    }  # fmt: skip
