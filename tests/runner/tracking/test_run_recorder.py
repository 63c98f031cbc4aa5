"""What the recorder makes of losses, times and evaluations."""

import time

import pytest
import torch
from support.worker_pool import settings

from pipetrain.engine.errors import DivergedError
from pipetrain.engine.losses import StepLoss
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.runner.tracking import records
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.run_recorder import RecordedRun, Recorder

SIZES = [4, 4, 2]


class OnDevice:
    """A loss that a device needs so many seconds to find."""

    device = torch.device("cuda")

    def __init__(self, value, seconds):
        self.value, self.seconds = value, seconds


class Copy:
    """The copy of such a loss on its way to the host."""

    memory = None

    def __init__(self, loss, _memory):
        self.loss = loss

    def take(self):
        time.sleep(self.loss.seconds)
        return torch.tensor(self.loss.value)


@pytest.fixture
def queued(monkeypatch):
    """A recorder is given losses of a device."""
    monkeypatch.setattr("pipetrain.runner.tracking.run_recorder.HostCopy", Copy)


def samples(step):
    return SIZES[step % 3]


def loss(value, seconds=None):
    """Over five tokens or samples; on a device that takes so long to find it, if it is on one."""
    return StepLoss(torch.tensor(value) if seconds is None else OnDevice(value, seconds), 5)


def run(path, every, executor="distributed", **options):
    chosen = settings("gpipe", log={"every_steps": every}, executor={"name": executor})
    return RecordedRun(RunDirectory(path), chosen, 3, samples, lambda _step: {"lr": 0.1}, **options)


def recorder(path, every, **options):
    made = Recorder(run(path, every, **options))
    made.start()
    made.begin(DrainInterval.whole(3))
    return made


def train(made, first, last, seconds=0.0):
    """Steps with losses 0, 1, 2 ... that take so long, drained at the end."""
    made.begin(DrainInterval(first // 3, first % 3, first % 3 + last - first, first))
    for step in range(first, last):
        time.sleep(seconds)
        made.step(step, loss(float(step)))
    made.drain()


def recorded(path, kind):
    return [record for record in records.read_records(RunDirectory(path)) if record["kind"] == kind]


@pytest.mark.usefixtures("queued")
def test_device_loss_is_read_at_next_step_or_drain(tmp_path):
    made = recorder(tmp_path, every=1)
    for step, value in enumerate((3.0, 2.0, 1.0)):
        made.step(step, loss(value, 0.0))
        assert made.losses == [3.0, 2.0, 1.0][:step]
    made.drain()
    assert made.losses == [3.0, 2.0, 1.0]
    found = recorded(tmp_path, "interval")
    assert [(each["step"], each["samples"], each["loss"]) for each in found] == [(1, 4, 3.0), (2, 4, 2.0), (3, 2, 1.0)]


@pytest.mark.usefixtures("queued")
def test_device_steps_last_from_loss_to_loss_or_drain(tmp_path):
    made = recorder(tmp_path, every=3)
    began = time.perf_counter()
    made.begin(DrainInterval.whole(3))
    for step in range(3):
        made.step(step, loss(1.0, 0.03))
    made.drain()
    ended = time.perf_counter()
    seconds = made.history()["run.samples_per_second"].tolist()
    assert all(each >= 0.03 for each in seconds)  # not the time that it takes to queue a step
    assert sum(seconds) == pytest.approx(ended - began, abs=0.01)
    assert recorded(tmp_path, "interval")[0]["train_s"] == pytest.approx(sum(seconds), abs=1e-5)


@pytest.mark.usefixtures("queued")
def test_history_has_the_losses_that_a_device_still_has(tmp_path):
    made = recorder(tmp_path, every=3)
    made.step(0, loss(3.0, 0.0))
    assert made.history()["run.losses"].tolist() == [3.0]


@pytest.mark.usefixtures("queued")
def test_nonfinite_loss_names_its_step_though_found_later(tmp_path):
    made = recorder(tmp_path, every=3)
    made.step(0, loss(1.0, 0.0))
    made.step(1, loss(float("nan"), 0.0))
    with pytest.raises(DivergedError, match="2"):
        made.step(2, loss(1.0, 0.0))
    assert len(made.losses) == len(made.history()["run.samples_per_second"]) == 2


def test_record_of_steps_has_mean_loss_and_sample_rate(tmp_path):
    made = recorder(tmp_path, every=2)
    train(made, 0, 3, seconds=0.02)
    train(made, 3, 6, seconds=0.02)  # times are rounded to microseconds
    found = recorded(tmp_path, "interval")
    assert [(each["step"], each["epoch"], each["samples"], each["loss"]) for each in found] == [
        (2, 1, 8, 0.5), (4, 2, 6, 2.5), (6, 2, 6, 4.5),
    ]  # fmt: skip
    for each in found:
        assert each["samples_per_second"] == pytest.approx(each["samples"] / each["train_s"], rel=1e-3)
    assert 0.04 <= found[0]["train_s"] < found[0]["wall_s"] + 0.5e-4  # which is rounded to tenths of milliseconds


def test_last_step_before_a_drain_lasts_until_the_drain_ends(tmp_path):
    made = recorder(tmp_path, every=1)
    for step in range(3):
        made.step(step, loss(1.0))
    assert [each["step"] for each in recorded(tmp_path, "interval")] == [1, 2]
    time.sleep(0.05)
    made.drain()
    last = recorded(tmp_path, "interval")[-1]
    assert last["step"] == 3
    assert last["train_s"] >= 0.05


def test_evaluation_between_two_intervals_belongs_to_no_step(tmp_path):
    made = recorder(tmp_path, every=3)
    train(made, 0, 3)
    time.sleep(0.2)
    made.evaluation(3, {"loss": 1.5, "top1": 50.0}, 0.2)
    train(made, 3, 6)
    made.epoch(6, [{"idle_share": 0.25, "forward_staleness": [0, 1]}])
    (evaluation,), (epoch,) = recorded(tmp_path, "eval"), recorded(tmp_path, "epoch")
    assert (evaluation["step"], evaluation["eval_loss"], evaluation["eval_s"]) == (3, 1.5, 0.2)
    assert epoch["train_s"] < 0.2 < epoch["wall_s"]
    assert (epoch["loss"], epoch["samples"], epoch["epoch"]) == (4.0, 10, 2)
    assert (epoch["stage0_idle_share"], epoch["stage0_forward_staleness"]) == (0.25, 1)
    result = made.summary()
    assert result["train_s"] < 0.2 <= result["eval_s"] <= result["wall_s"]


def test_epoch_that_is_cut_short_averages_its_own_losses(tmp_path):
    made = recorder(tmp_path, every=1)
    train(made, 0, 3)
    train(made, 3, 4)
    made.epoch(4, [])
    assert recorded(tmp_path, "epoch")[0]["loss"] == 3.0


def test_simulation_has_own_speed_and_predicted_pipeline_speed(tmp_path):
    made = recorder(tmp_path, every=1, executor="simulated")
    for step in range(3):
        made.step(step, loss(1.0))
    made.drain([1.0, 1.0, 0.5])
    made.epoch(3, [])
    assert "samples_per_second" not in recorded(tmp_path, "interval")[0]
    assert recorded(tmp_path, "epoch")[0]["predicted_samples_per_second"] == 4.0
    result = made.summary()
    assert (result["samples_per_second"], result["predicted_samples_per_second"]) == (None, 4.0)
    assert result["simulator_samples_per_second"] > 0


def test_resumed_record_goes_on_where_the_earlier_one_was_saved(tmp_path):
    made = recorder(tmp_path, every=2)
    train(made, 0, 3)
    made.evaluation(3, {"top1": 50.0}, 0.5)
    again = Recorder(run(tmp_path, 2), {"step": 3, **made.progress()}, made.history())
    again.start()
    train(again, 3, 6)
    assert [each["loss"] for each in recorded(tmp_path, "interval")] == [0.5, 2.5, 4.5]
    assert [each["step"] for each in recorded(tmp_path, "start")] == [0, 3]
    result = again.summary()
    assert (result["steps"], result["samples"], result["eval_s"]) == (6, 20, 0.5)
    assert (result["best_step"], result["best_epoch"]) == ({"top1": 3}, {"top1": 1})


def test_text_run_reports_tokens_and_their_throughput(tmp_path):
    made = recorder(tmp_path, every=2, counts_tokens=True)
    train(made, 0, 3, seconds=0.01)
    (interval,) = recorded(tmp_path, "interval")
    assert (interval["samples"], interval["tokens"]) == (8, 10)
    assert interval["tokens_per_second"] == pytest.approx(interval["samples_per_second"] * 10 / 8, rel=0.01)
    found = made.summary()
    assert found["tokens"] == 15
    assert found["tokens_per_second"] == pytest.approx(found["samples_per_second"] * 10 / 6)
    again = Recorder(run(tmp_path, 2, counts_tokens=True), {"step": 3}, made.history())
    assert again.summary()["tokens"] == 15


def test_run_on_anything_else_tells_no_tokens(tmp_path):
    made = recorder(tmp_path, every=3)
    train(made, 0, 3)
    assert not any("tokens" in name for name in (*made.summary(), *made.history(), *recorded(tmp_path, "interval")[0]))
