"""Runs whose loss is finite while their weights are not: they end as diverged, and keep what they had before."""

import pytest
from support.cli import TINY, records, run_here, summary
from support.one_run import carried_out
from support.quick_cases import every

from pipetrain.engine.errors import ExitCode
from pipetrain.runner.training.checkpoint import contents, store

SPOILED = ("loss._target_=support.nan_gradient.NanGradient", "checkpoint.every_steps=1", "checkpoint.keep_last=1")
FINEGRAINED = ("partition._target_=pipetrain.runner.partition.finegrained.FineGrained", "partition.stages=3")


def check_diverged(folder, step):
    found = summary(folder)
    assert (found["status"], found["diverged_at_step"], found["steps"]) == ("diverged", step, step)
    assert found["reason"].endswith(f" is not finite after step {step}")
    assert not [record for record in records(folder) if record["kind"] == "eval" and record["step"] >= step]
    kept, *others = store.checkpoints(folder)
    assert (store.step_of(kept), others) == (step - 1, [])
    assert all(tensor.isfinite().all() for tensor in contents.model_state(kept).values())


@pytest.mark.parametrize(
    ("words", "call", "step"),
    every(
        4,
        [
            ((), 3, 3),
            (("train.max_steps=4", "eval.every_epochs=0"), 4, 4),  # the last step
            (("checkpoint.every_steps=5",), 6, 6),  # where an evaluation comes next
            (("train.microbatches=2", "optimizer.clip_norm=1"), 6, 3),
            (FINEGRAINED, 3, 3),
            (("partition.replicas=[2,1]",), 3, 3),
            (("train.precision=bf16", "train.ema=0.9"), 3, 3),
        ],
    ),
)
def test_weights_that_are_not_finite_are_neither_saved_nor_evaluated(tmp_path, words, call, step):
    assert carried_out(tmp_path, *SPOILED, f"loss.nth={call}", *words) == ExitCode.DIVERGED
    check_diverged(tmp_path, step)


def test_run_that_diverged_resumes_from_its_last_finite_weights(tmp_path):
    spoiled = (*SPOILED, "train.max_steps=5", "loss.nth=4")
    assert carried_out(tmp_path, *spoiled) == ExitCode.DIVERGED
    assert carried_out(tmp_path, *spoiled, "resume=auto") == ExitCode.COMPLETED  # the fourth call does not come again
    assert summary(tmp_path)["steps"] == 5


def test_updates_that_a_scaled_loss_skips_are_no_divergence(tmp_path):
    assert carried_out(tmp_path, *SPOILED, "loss.nth=3", "train.precision=fp16") == ExitCode.COMPLETED
    assert [stage["skipped_updates"] for stage in summary(tmp_path)["per_stage"]] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("method=pipedream",), ("method=gpipe", "schedule=torch_interleaved_1f1b", "train.microbatches=2")]
)
def test_processes_end_together_at_the_step_of_a_simulation(tmp_path, words):
    call = 4 * (2 if "train.microbatches=2" in words else 1)
    run_here(
        tmp_path / "run", *TINY, "partition.stages=2", "loss=custom", *SPOILED, f"+loss.nth={call}", *words, code=3
    )
    check_diverged(tmp_path / "run", 4)
