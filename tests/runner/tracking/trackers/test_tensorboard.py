"""The scalars of a run in TensorBoard's event file."""

import re
import time
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.backend_context import _sort_and_reduce_to_hparams_limit
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from pipetrain.runner.tracking.callbacks import RunInfo
from pipetrain.runner.tracking.records import MetricsFile, stage_fields
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.trackers.tensorboard import TensorBoard

STAGE = {
    "peak_memory_bytes": 2_000_000, "weight_bytes_peak": 400_000, "weight_versions_max": 2,
    "activation_bytes_peak": 300, "idle_share": 0.25, "forward_staleness": [0, 1], "backward_staleness": [],
}  # fmt: skip
SUMMARY = {
    "steps": 2, "wall_s": 3.0, "samples_per_second": 8.0, "simulator_samples_per_second": None,
    "final": {"top1": 50.0}, "best": {"top1": 60.0}, "per_stage": [STAGE],
}  # fmt: skip
TIMES = {"wall_s": 1.0, "samples_per_second": 8.0}
EPOCH = {"kind": "epoch", "step": 2, "loss": 2.0, **TIMES}


def interval(step, loss=2.5, **more):
    return {"kind": "interval", "step": step, "loss": loss, "lr": 0.5, **TIMES, **more}


def read(run):
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    return events


def points(run):
    events = read(run)
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def charts(run):
    """Title -> the pattern of its tags, on the page of custom scalars."""
    (event,) = read(run).Tensors("custom_scalars__config__")
    layout = Layout.FromString(event.tensor_proto.string_val[0])
    return {chart.title: chart.multiline.tag[0] for chart in layout.category[0].chart}


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def board_of(run, settings=None, choices=None, step=0):
    board = TensorBoard()
    board.on_start(RunInfo(run.path, settings or {}, choices or {}, step))
    return board


def test_board_has_only_what_each_stage_measured(run):
    board = board_of(run)
    board.on_record(interval(1, stage0_lr=0.25))
    unmeasured = {**STAGE, "activation_bytes_peak": None, "idle_share": None}
    board.on_record({**EPOCH, **stage_fields([STAGE, unmeasured])})
    board.on_record({"kind": "eval", "step": 2, "eval_s": 0.5, "eval_top1": 50.0})
    board.on_end(SUMMARY)
    found = points(run)
    assert found["train/loss"] == [(1, 2.5)]
    assert (found["train/epoch_loss"], found["time/wall_s"]) == ([(2, 2.0)], [(2, 1.0)])
    assert found["throughput/samples_per_second"] == [(1, 8.0)]
    assert found["throughput/epoch_samples_per_second"] == [(2, 8.0)]
    assert found["eval/top1"] == [(2, 50.0)]
    assert found["idle_share/stage0"] == [(2, 0.25)]
    assert found["stage_lr/stage0"] == [(1, 0.25)]
    assert found["forward_staleness/stage0"] == [(2, 1.0)]
    assert found["weights_MB/stage1"] == [(2, pytest.approx(0.4))]
    assert not {"idle_share/stage1", "activations_MB/stage1", "backward_staleness/stage0"} & found.keys()


def test_all_stages_share_a_chart_on_the_page_of_custom_scalars(run):
    board = board_of(run, {"seed": 3})
    board.on_record(interval(1))
    board.on_record({**EPOCH, **stage_fields([STAGE, STAGE])})
    board.on_end(SUMMARY)
    tags = [tag for tag in points(run) if re.fullmatch(charts(run)["activations_MB"], tag)]
    assert tags == ["activations_MB/stage0", "activations_MB/stage1"]
    (event,) = read(run).Tensors("config/text_summary")
    assert b"seed: 3" in event.tensor_proto.string_val[0]


def test_board_shows_each_replica_in_charts_of_its_stage(run):
    board = board_of(run)
    board.on_record(interval(1, stage0_lr=0.5))
    replicas = [{**STAGE, "idle_share": share, "forward_staleness": [k]} for k, share in enumerate((0.125, 0.375))]
    board.on_record(
        {"kind": "epoch", "step": 2, "loss": 2.0, **TIMES, **stage_fields([STAGE, {**STAGE, "replicas": replicas}])}
    )
    board.on_end(SUMMARY)
    found = points(run)
    assert [found[f"idle_share/stage1{replica}"] for replica in ("", "/replica0", "/replica1")] == [
        [(2, 0.25)], [(2, 0.125)], [(2, 0.375)],
    ]  # fmt: skip
    assert found["forward_staleness/stage1/replica1"] == [(2, 1.0)]
    assert "idle_share/stage0/replica0" not in found
    tags = [tag for tag in found if re.fullmatch(charts(run)["memory_MB"], tag)]
    assert tags == [f"memory_MB/stage{each}" for each in ("0", "1", "1/replica0", "1/replica1")]


@pytest.mark.parametrize("rates_by_stage", [True, False])
def test_learning_rates_by_stage_have_a_chart_if_any(run, rates_by_stage):
    board = board_of(run)
    board.on_record(interval(1, **({"stage0_lr": 0.5} if rates_by_stage else {})))
    board.on_end(SUMMARY)
    assert ("stage_lr" in charts(run)) == rates_by_stage
    assert "idle_share" in charts(run)


@pytest.mark.parametrize("every", [10, None])
def test_distances_of_weights_have_charts_if_measured(run, every):
    board = board_of(run, {"log": {"staleness_every_steps": every}})
    board.on_record(interval(1))
    board.on_record({"kind": "staleness", "step": 3, "stage0_gradient_norm": 0.5, "stage1_relative_weight_drift": None})
    board.on_end(SUMMARY)
    assert ("update_norm" in charts(run)) == (every is not None)
    found = points(run)
    assert found["gradient_norm/stage0"] == [(3, 0.5)]
    assert "relative_weight_drift/stage1" not in found


def test_hyperparameters_open_with_method_model_seed_and_rate(run):
    first = {"method": "gpipe", "model": "lenet5", "optimizer.lr": 0.5, "partition.stages": 2, "seed": 1}
    choices = {"dataset": "mnist", "method": "gpipe", "model": "lenet5"}
    sections = {"checkpoint": {"at_start": False}, "optimizer": {"lr": 0.5}, "partition": {"stages": 2}}
    board_of(run, {**sections, "seed": 1, "train": {"epochs": 2}}, choices).on_end(SUMMARY)
    plugin = read(run).PluginTagToContent("hparams")
    experiment = HParamsPluginData.FromString(plugin["_hparams_/experiment"]).experiment
    _sort_and_reduce_to_hparams_limit(experiment)
    assert [info.name for info in experiment.hparam_infos] == [
        *first, "checkpoint.at_start", "dataset", "train.epochs",
    ]  # fmt: skip


def test_hyperparameters_come_with_all_results_of_the_run(run):
    board_of(run, {"optimizer": {"lr": 0.5}}, {"method": "gpipe"}).on_end(SUMMARY)
    plugin = read(run).PluginTagToContent("hparams")
    set_values = HParamsPluginData.FromString(plugin["_hparams_/session_start_info"]).session_start_info.hparams
    assert (set_values["optimizer.lr"].number_value, set_values["method"].string_value) == (0.5, "gpipe")
    experiment = HParamsPluginData.FromString(plugin["_hparams_/experiment"]).experiment
    metrics = {info.name.tag for info in experiment.metric_infos}
    assert {"final/top1", "best/top1", "run/samples_per_second", "run/wall_s", "run/memory_MB"} <= metrics
    found = points(run)
    assert metrics <= found.keys()
    assert found["run/samples_per_second"] == [(2, 8.0)]


def test_run_that_goes_on_in_another_directory_has_all_points(run):
    file = MetricsFile(run, 0)
    for step in (1, 2):
        file.write(interval(step))
    board_of(run, step=2).on_end(SUMMARY)
    assert points(run)["train/loss"] == [(1, 2.5), (2, 2.5)]


def test_resumed_run_supersedes_the_points_behind_its_checkpoint(run, monkeypatch):
    now = [time.time()]
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time", SimpleNamespace(time=lambda: now[0]))
    for steps, start, loss in (((1, 2, 3), 0, 2.0), ((3, 4), 2, 1.0)):
        file, board = MetricsFile(run, start), board_of(run, step=start)
        for step in steps:
            file.write(interval(step, loss))
            board.on_record(interval(step, loss))
        board.on_end(SUMMARY)
        now[0] += 2  # event files are read in the order of their names, which count seconds
    assert points(run)["train/loss"] == [(1, 2.0), (2, 2.0), (3, 1.0), (4, 1.0)]
