"""The schedules of torch.distributed.pipelining against our own gpipe: they are synchronous, so results agree."""

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import replace

import pytest
import torch
from process_tree import workers
from support.cli import arguments, environment, fails, pipetrain, refused, run_here, summary
from support.pipelines import difference
from support.processes import needs_proc
from support.worker_pool import distributed, job, plan_of, simulated

from pipetrain import cli
from pipetrain.plugins.torch_schedules.schedules import Interleaved1F1B
from pipetrain.runner.training.checkpoint import contents, store

SCHEDULES = ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
RAGGED = {"train": 20, "eval": 10}
"""With minibatches of 8: the last has 4 samples."""


def torch_job(folder, schedule, stages, options=None, **changes):
    section = {"_target_": f"pipetrain.plugins.torch_schedules.schedules.{schedule}", **(options or {})}
    return job(folder, "gpipe", stages, schedule=section, **changes)


def losses(folder):
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "lr" in line]


def state(folder):
    return contents.model_state(store.newest_undamaged(str(folder)))


def check(folder, schedules, stages, microbatches, **changes):
    """Runs all of them, and gpipe simulated; the summaries by name, gpipe's last."""
    changes = {"dataset": RAGGED, **changes, "train": {"batch_size": 8, "microbatches": microbatches}}
    jobs = [torch_job(folder / schedule, schedule, stages, **changes) for schedule in schedules]
    results = dict(zip(schedules, distributed(jobs), strict=True))
    expected = simulated(job(folder / "gpipe", "gpipe", stages, **changes))
    for schedule, result in results.items():
        assert losses(folder / schedule) == pytest.approx(losses(folder / "gpipe"), rel=1e-5), schedule
        assert difference(state(folder / schedule), state(folder / "gpipe")) < 1e-5, schedule
        assert result["final"] == pytest.approx(expected["final"], rel=1e-5), schedule
        for stage in result["per_stage"]:
            assert (stage["forward_staleness"], stage["backward_staleness"]) == ([0], [0])
            assert stage["weight_versions_max"] == (1 if stage["weight_bytes_peak"] else 0)
            assert (stage["idle_share"], stage["activation_bytes_peak"]) == (None, None)
    return {**results, "gpipe": expected}


TIED = {"model": {"_target_": "support.tied_model.build"}, "optimizer": {"clip_norm": 0.1}}
CASES = {
    "plain": (SCHEDULES, 4, 4, {}),
    "stress model": (SCHEDULES, 4, 4, {"model": {"_target_": "support.edge_case_model.build"}}),
    # in one process and in several: stages 1 and 3 hold it, of which Interleaved1F1B makes one process
    "shared weight": (("Interleaved1F1B", "ZBVZeroBubble"), 4, 4, TIED),
    # each process has two stages that wait for the other's two
    "weight of all stages": (SCHEDULES[:1], 4, 4, {"model": {"_target_": "support.tied_model.build_everywhere"}}),
    "one microbatch": (SCHEDULES[:3], 4, 1, {}),
    "two microbatches": (SCHEDULES[:3], 4, 2, {}),
    "one process": (SCHEDULES, 2, 2, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.exhaustive if name == "plain" else []) for name in CASES]
)
def test_torch_schedules_equal_gpipe(tmp_path, case):
    if case == "stress model" and torch.__version__ < "2.13":
        pytest.skip("the library finds gradients of weights used twice wrongly")
    schedules, stages, microbatches, changes = CASES[case]
    check(tmp_path, schedules, stages, microbatches, **changes)


@pytest.mark.slow
def test_torch_schedules_with_clipping_equal_gpipe(tmp_path):
    found = check(tmp_path, SCHEDULES, 4, 4, optimizer={"clip_norm": 0.1})
    assert found["gpipe"]["loss_sha256"] != simulated(job(tmp_path / "free", "gpipe", 4))["loss_sha256"]


@pytest.mark.slow
def test_torch_schedules_with_several_local_stages_equal_gpipe(tmp_path):
    """Six stages of the seven layers, three in each process."""
    changes = {"dataset": RAGGED, "train": {"batch_size": 8, "microbatches": 4}}
    plan = plan_of([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 7)])
    jobs = [replace(torch_job(tmp_path / name, name, 4, {"chunks": 3}, **changes), plan=plan) for name in SCHEDULES[:2]]
    jobs = [replace(each, placement=Interleaved1F1B(3).placement(6)) for each in jobs]
    distributed(jobs)
    simulated(job(tmp_path / "gpipe", "gpipe", 4, **changes))
    for name in SCHEDULES[:2]:
        assert losses(tmp_path / name) == pytest.approx(losses(tmp_path / "gpipe"), rel=1e-5)
        assert difference(state(tmp_path / name), state(tmp_path / "gpipe")) < 1e-5


@pytest.mark.slow
def test_diverged_torch_run_reports_every_stage_in_its_place(tmp_path):
    folder = tmp_path / "run"
    words = ("method=gpipe", "schedule=torch_zbv_zero_bubble", "model=lenet5", "partition.stages=4",
             "dataset.limit=256", "train.batch_size=32", "optimizer.lr=1e30")  # fmt: skip
    done = run_here(folder, *words, code=3)
    assert re.fullmatch(r"pipetrain: error: diverged: the loss of step \d is (nan|inf)\n", done.stderr)
    found = summary(folder)
    assert found["status"] == "diverged"
    plan = json.loads((folder / "plan.json").read_text())["stages"]
    assert [stage["parameters"] for stage in found["per_stage"]] == [stage["parameters"] for stage in plan]
    assert all(stage["weight_bytes_peak"] == 4 * stage["parameters"] for stage in found["per_stage"])


# -- the command -------------------------------------------------------------------------------------------------------

TINY = ("method=gpipe", "model=lenet5", "partition.stages=4", "dataset.limit=160", "train.batch_size=32")


DUALPIPEV = (*TINY, "schedule=torch_dualpipev", "train.microbatches=4", "train.epochs=1")


@pytest.mark.slow
def test_command_runs_torch_schedules_and_shows_their_processes(tmp_path):
    done = run_here(tmp_path / "first", *DUALPIPEV)
    assert "2 processes: stages 0 and 3, stages 1 and 2" in done.stdout
    assert done.stdout.count("  0 / 0") == 4
    assert done.stderr == ""
    found = summary(tmp_path / "first")
    assert (found["status"], found["steps"], found["schedule"]) == ("completed", 5, "torch_dualpipev")


@pytest.mark.slow
def test_torch_run_checkpoint_resumes_across_partitions(tmp_path):
    run_here(tmp_path / "first", *DUALPIPEV)
    gpipe = (*TINY, "partition.stages=2", "train.microbatches=4", "executor=simulated", "threads=1")
    run_here(tmp_path / "second", *gpipe, "train.epochs=2", f"resume={tmp_path / 'first'}")
    run_here(tmp_path / "third", *DUALPIPEV, "train.epochs=3", f"resume={tmp_path / 'second'}")
    run_here(tmp_path / "whole", *gpipe, "train.epochs=3")
    assert difference(state(tmp_path / "third"), state(tmp_path / "whole")) < 1e-4
    assert losses(tmp_path / "third") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("schedule=torch_dualpipev partition.stages=4 train.microbatches=2", "train.microbatches=4 works"),
        ("schedule=torch_interleaved_1f1b partition.stages=3", "stages=2 or 4 works"),
    ],
)
def test_wrong_torch_schedule_settings_are_refused(tmp_path, words, message):
    others = [word for word in TINY if not word.startswith("partition.stages=")]
    refused("run", f"hydra.run.dir={tmp_path / 'run'}", *others, *words.split(), cwd=tmp_path, message=message)
    assert not (tmp_path / "run").exists()


def test_timeline_of_a_torch_schedule_is_refused(capsys):
    assert cli.carry_out(["timeline", "method=gpipe", "schedule=torch_zbv_zero_bubble", "partition.stages=4"]) == 2
    assert re.search(r"torch_zbv_zero_bubble is run by .* and has no operation list", capsys.readouterr().err)


@pytest.mark.slow
def test_torchrun_must_start_one_process_per_stage_holder(tmp_path):
    done = pipetrain("run", *TINY, "schedule=torch_zbv_zero_bubble", cwd=tmp_path, RANK="0", WORLD_SIZE="4")
    assert done.returncode == 2
    assert "WORLD_SIZE=4: partition.stages=4 needs 2 processes" in done.stderr


# -- failures ----------------------------------------------------------------------------------------------------------

MISBEHAVING = (
    "method=gpipe", "schedule=torch_zbv_zero_bubble", "model=custom", "model._target_=support.faults.failing_layer",
    "partition=explicit", "partition.boundaries=[2,4,5]", "train.epochs=1", "train.microbatches=2",
    "launch.hang_timeout=15",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "message"),
    [
        pytest.param("raise", "stages 1 and 2 failed: ValueError: this layer gave up", marks=pytest.mark.exhaustive),
        ("sleep", r"stages 1 and 2 hung: \d+ s in F9.1 of stage 2"),
        pytest.param("exit7", "stages 1 and 2 failed: exit code 7", marks=pytest.mark.exhaustive),
    ],
)
def test_failed_process_of_several_stages_is_named_by_its_stages(tmp_path, how, message):
    fails(tmp_path / "run", *MISBEHAVING, f"+model.how={how}", message=message)


@pytest.mark.slow
@needs_proc
def test_killed_process_of_several_stages_is_named_by_its_stages(tmp_path):
    folder = tmp_path / "run"
    words = ("method=gpipe", "schedule=torch_interleaved_1f1b", "partition.stages=4", "train.epochs=50")
    process = subprocess.Popen(
        arguments("run", f"hydra.run.dir={folder}", *words), cwd=tmp_path, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (folder / "metrics.jsonl").exists():
        time.sleep(0.1)
    first, _ = workers(process.pid)
    os.kill(first, signal.SIGKILL)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "stages 0 and 2 failed: killed by SIGKILL" in error
    assert summary(folder)["status"] == "failed"
