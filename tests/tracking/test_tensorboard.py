"""The scalars of a run in TensorBoard's event file."""

import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.tensorboard import Board

STAGE = {
    "peak_memory_bytes": 1000, "weight_bytes_peak": 400, "weight_versions_max": 2, "activation_bytes_peak": 300,
    "idle_share": 0.25, "forward_staleness": [0, 1], "backward_staleness": [],
}  # fmt: skip


def read(run):
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def test_board_has_what_each_stage_measured_and_nothing_of_what_it_did_not(run):
    board = Board(run, None)
    board.step({"step": 1, "loss": 2.5, "lr": 0.5, "samples_per_second": 8.0})
    unmeasured = {**STAGE, "activation_bytes_peak": None, "idle_share": None}
    board.epoch({"step": 2, "eval": {"top1": 50.0}, "per_stage": [STAGE, unmeasured]})
    board.close({"method": "gpipe"}, {"top1": 50.0})
    found = read(run)
    assert found["train/loss"] == [(1, 2.5)]
    assert found["eval/top1"][0] == (2, 50.0)
    assert found["perf/stage0_idle_share"] == [(2, 0.25)]
    assert found["weights/stage0_forward_staleness"] == [(2, 1.0)]
    assert found["memory/stage1_weight_bytes"] == [(2, 400.0)]
    for tag in ("perf/stage1_idle_share", "memory/stage1_activation_bytes", "weights/stage0_backward_staleness"):
        assert tag not in found


def test_resumed_run_supersedes_the_points_behind_its_checkpoint(run):
    for steps, purge, loss in (((1, 2, 3), None, 2.0), ((3, 4), 3, 1.0)):
        board = Board(run, purge)
        for step in steps:
            board.step({"step": step, "loss": loss, "lr": 0.5, "samples_per_second": 8.0})
        board.close({}, {})
        time.sleep(1.1)  # event files are read in the order of their names, which count seconds
    assert read(run)["train/loss"] == [(1, 2.0), (2, 2.0), (3, 1.0), (4, 1.0)]
