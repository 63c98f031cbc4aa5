"""A run in one process: what it builds, and how it ends."""

import os
import signal
import time
from dataclasses import replace

import pytest
import torch
from support import cli, sleeping_model
from support.cli import TINY, run_here
from support.worker_pool import job, on, simulated
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipetrain.runner.launch.signals import Interruption, interruptible
from pipetrain.runner.launch.worker import run_simulated
from pipetrain.runner.tracking import records, summary
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.writer import BackgroundWriter
from pipetrain.runner.training.timetable import Timetable


def test_diverged_simulation_leaves_a_summary_with_every_stage(tmp_path):
    made = on("simulated", job(tmp_path / "run", "pipedream", 3, optimizer={"lr": 1e30}))
    result = simulated(made)
    assert result == summary.read(made.run)
    assert (result["status"], result["weights_sha256"]) == ("diverged", None)
    assert result["steps"] == result["diverged_at_step"]
    assert f"step {result['steps']} " in result["reason"]
    assert all("weight_versions_max" in stage for stage in result["per_stage"])


def broken_off(made, steps, interruption=None, kind="interval"):
    """The summary of a simulation that gets a Ctrl-C after so many steps; before their evaluation if `epoch` ends."""

    def show(record):
        if record["kind"] == kind and record["step"] == steps:
            os.kill(os.getpid(), signal.SIGINT)

    made.run.path.mkdir(parents=True, exist_ok=True)
    return run_simulated(on("simulated", made), show, interruption or Interruption())


LONG = {"train": {"epochs": 3}, "checkpoint": {"every_epochs": 1}}
SHOWN = {**LONG, "log": {"to": ["tensorboard"]}}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gpipe", "pipeoptim", "vertical_sync"])
def test_stopped_simulation_resumes_as_after_any_drain(tmp_path, method):
    stopped = broken_off(job(tmp_path / "stopped", method, 3, **LONG), 8)
    step = stopped["steps"]
    assert (stopped["status"], stopped["checkpoint"]) == ("interrupted", f"checkpoints/step-{step:08d}")
    assert 8 <= step < 12
    assert stopped["extra_drains"] == ([] if method == "gpipe" else [step])
    folder = tmp_path / "stopped" / stopped["checkpoint"]
    again = simulated(job(tmp_path / "again", method, 3, resume=folder, **LONG))
    assert (again["status"], again["extra_drains"]) == ("completed", stopped["extra_drains"])
    table = replace(job(tmp_path, method, 3, **LONG).timetable, save_every_steps=step, save_every=0)
    drained = replace(job(tmp_path / "drained", method, 3, **LONG), timetable=table)
    simulated(drained)
    assert contents.model_state(drained.run.checkpoint(step)).keys() == contents.model_state(folder).keys()
    for name, tensor in contents.model_state(drained.run.checkpoint(step)).items():
        assert torch.equal(tensor, contents.model_state(folder)[name]), name
    if method == "gpipe":
        whole = simulated(job(tmp_path / "whole", method, 3, **LONG))
        assert again["weights_sha256"] == whole["weights_sha256"]


def evaluated_in_tensorboard(run):
    """The steps of the points of `eval/loss` that TensorBoard shows."""
    events = EventAccumulator(str(run.tensorboard)).Reload()
    return [point.step for point in events.Scalars("eval/loss")], [p.step for p in events.Scalars("train/epoch_loss")]


@pytest.mark.slow
@pytest.mark.parametrize("step", [6, 18])
@pytest.mark.parametrize("where", ["same", "other"])
def test_simulation_stopped_in_evaluation_repeats_only_that(tmp_path, step, where):
    whole = simulated(job(tmp_path / "whole", "pipedream", 3, **LONG))
    made = job(tmp_path / "run", "pipedream", 3, **SHOWN)
    stopped = broken_off(made, step, kind="epoch")
    folder = made.run.checkpoint(step)
    assert (stopped["status"], stopped["steps"], stopped["extra_drains"]) == ("interrupted", step, [])
    assert store.load_progress(folder)["evaluation_due"]
    resumed = replace(made, resume=folder.resolve())
    time.sleep(1 - time.time() % 1)  # TensorBoard reads a process's files of one second as strings order their numbers
    if where == "other":
        resumed = replace(resumed, run=RunDirectory(tmp_path / "other"))
        resumed.run.path.mkdir()
        records.copy_records_until(made.run, resumed.run, step)
    again = simulated(resumed)
    names = ("status", "steps", "weights_sha256", "loss_sha256", "final", "best", "best_step", "extra_drains")
    assert [again[name] for name in names] == [whole[name] for name in names]
    kinds = [(each["kind"], each["step"]) for each in records.read_records(resumed.run)]
    assert [each for each in kinds if each[0] in ("epoch", "eval")] == [
        (kind, each) for each in (6, 12, 18) for kind in ("epoch", "eval")
    ]
    for each in store.checkpoints(resumed.run.path):
        progress = store.load_progress(each)
        assert (progress["evaluation_due"], progress["metrics"].keys() >= {"loss"}) == (False, True)
    if where == "same":
        assert evaluated_in_tensorboard(made.run) == ([6, 12, 18], [6, 12, 18])


def test_evaluation_recorded_but_not_saved_is_recorded_once(tmp_path, monkeypatch):
    made = job(tmp_path / "run", "pipedream", 3, **SHOWN)
    with monkeypatch.context() as patched:
        patched.setattr(BackgroundWriter, "save_progress", lambda *_: os.kill(os.getpid(), signal.SIGQUIT))
        with pytest.raises(KeyboardInterrupt), interruptible():
            simulated(made)
    assert [each["kind"] for each in records.read_records(made.run)][-1] == "eval"
    simulated(replace(made, resume=store.newest_whole(made.run.path)[0]))
    assert [each["step"] for each in records.read_records(made.run) if each["kind"] == "eval"] == [6, 12, 18]
    assert evaluated_in_tensorboard(made.run) == ([6, 12, 18], [6, 12, 18])


def test_best_checkpoints_follow_later_evaluations(tmp_path):
    keep = {"keep_last": 1, "keep_best": 1, "metric": "loss"}
    made = job(tmp_path, "pipedream", 3, checkpoint={"every_epochs": 1, **keep}, train={"epochs": 4})
    result = simulated(made)
    best = result["best_step"]["loss"]
    kept = [store.step_of(folder) for folder in store.checkpoints(tmp_path)]
    assert kept == sorted({best, result["steps"]})
    assert store.best_first(store.checkpoints(tmp_path), "loss")[0] == made.run.checkpoint(best)


def test_checkpoint_that_is_saved_again_keeps_its_metrics(tmp_path):
    first = job(tmp_path / "first", "pipedream", 3, **LONG)
    simulated(first)
    end = first.run.checkpoint(first.timetable.total_steps)
    again = job(tmp_path / "again", "pipedream", 3, resume=end, **LONG)
    simulated(again)  # all steps are done; what it saves is what it resumed
    metrics = store.load_progress(again.run.checkpoint(first.timetable.total_steps))["metrics"]
    assert metrics == store.load_progress(end)["metrics"]
    assert metrics.keys() >= {"loss", "top1"}


def test_signal_ends_simulation_at_once_without_time_allowed(tmp_path):
    made = job(tmp_path / "run", "pipeoptim", 3, launch={"stop_timeout": 0.0}, **LONG)
    with pytest.raises(KeyboardInterrupt):
        broken_off(made, 8)
    assert summary.read(made.run) is None


def test_late_signal_for_simulation_is_noted_for_its_sweep(tmp_path):
    made, interruption = job(tmp_path / "run", "pipeoptim", 3, eval={"every_epochs": 0}, **LONG), Interruption()
    assert broken_off(made, made.timetable.total_steps, interruption)["status"] == "completed"
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        interruption.check()


def sleeping(folder):
    """One epoch of ten minibatches of four samples through two stages that sleep as long in each forward."""
    settings = {"model": {"_target_": "support.sleeping_model.build"}, "eval": {"every_epochs": 0}}
    return job(folder, "naive_async", 2, dataset={"train": 40, "size": 4}, train={"epochs": 1}, **settings)


def test_simulated_run_reports_own_and_pipeline_speed(tmp_path):
    found = simulated(sleeping(tmp_path))
    one, both = 4 / sleeping_model.SECONDS, 9 * 4 / (17 * sleeping_model.SECONDS)
    assert found["samples_per_second"] is None
    # a busy machine makes both slower; of the last nine minibatches, the first is in stage 1 when their time begins
    assert found["simulator_samples_per_second"] <= both
    assert 1.4 * found["simulator_samples_per_second"] < found["predicted_samples_per_second"] <= 1.01 * one


def test_final_checkpoint_has_all_names_of_tied_weight(tmp_path):
    made = job(tmp_path, "gpipe", 2, model={"_target_": "support.tied_model.build"}, checkpoint={"every_epochs": 2})
    simulated(made)
    (folder,) = store.checkpoints(tmp_path)
    state = contents.named_state(folder)
    assert torch.equal(state["decoder.weight"], state["encoder.linear.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gpipe", "pipeoptim"])
def test_timed_checkpoints_drain_like_those_of_every_step(tmp_path, method):
    clocked = simulated(job(tmp_path / "clocked", method, 3, checkpoint={"every_minutes": 1e-9}))
    steps = [store.step_of(folder) for folder in store.checkpoints(tmp_path / "clocked")]
    assert steps == [*range(1, 13)]
    repeated = simulated(job(tmp_path / "repeated", method, 3, checkpoint={"every_steps": 1}))
    whole = simulated(job(tmp_path / "whole", method, 3))
    assert [repeated[name] for name in BITS] == [clocked[name] for name in BITS]
    assert clocked["extra_drains"] == ([] if method == "gpipe" else [step for step in steps if step % 6])
    assert (clocked["weights_sha256"] == whole["weights_sha256"]) == (method == "gpipe")


@pytest.mark.parametrize(("method", "replicas"), [("pipedream", [3, 2]), ("gpipe", [2, 2])])
def test_timed_checkpoints_cut_replica_rounds_like_those_of_every_step(tmp_path, method, replicas):
    changes = {"partition": {"replicas": replicas}, "train": {"epochs": 1}}
    clocked = simulated(job(tmp_path / "a", method, 2, checkpoint={"every_minutes": 1e-9}, **changes))
    again = simulated(job(tmp_path / "b", method, 2, checkpoint={"every_steps": 1}, **changes))
    assert clocked["extra_drains"] == [1, 2, 3, 4, 5]
    assert [again[name] for name in BITS] == [clocked[name] for name in BITS]


BITS = ("status", "steps", "weights_sha256", "loss_sha256")


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [pytest.param("[1,1]", marks=pytest.mark.exhaustive), "[2,1]"])
def test_simulation_with_the_drains_of_processes_has_their_bits(tmp_path, monkeypatch, replicas):
    tiny = [*TINY, "method=pipedream", "dataset.limit=3000", "eval.every_epochs=0", f"partition.replicas={replicas}"]
    run_here(tmp_path / "clocked", *tiny, "checkpoint.every_minutes=0.003", "checkpoint.every_epochs=0")
    clocked = cli.summary(tmp_path / "clocked")
    assert clocked["extra_drains"]
    saved = {store.step_of(folder) for folder in store.checkpoints(tmp_path / "clocked")}
    assert saved >= {*clocked["extra_drains"]}
    intervals = Timetable.intervals

    def drained(table, step):
        whole = next(intervals(table, step))
        ends = [end for end in (whole.start + whole.minibatches, *clocked["extra_drains"]) if end > step]
        yield whole.ended_after(min(ends) - step)

    monkeypatch.setattr(Timetable, "intervals", drained)
    run_here(tmp_path / "repeated", *tiny, "executor=simulated")
    assert [cli.summary(tmp_path / "repeated")[name] for name in BITS] == [clocked[name] for name in BITS]
