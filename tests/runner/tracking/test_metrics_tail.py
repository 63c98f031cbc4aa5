"""What another process records is shown once."""

import time

import pytest
from support.waiting import eventually

from pipetrain.runner.tracking import metrics_tail
from pipetrain.runner.tracking.metrics_tail import MetricsTail
from pipetrain.runner.tracking.records import MetricsFile
from pipetrain.runner.tracking.run_directory import RunDirectory


class Bar:
    """Keeps the kinds and steps of the records that it is given."""

    def __init__(self):
        self.shown = []

    def update(self, record):
        self.shown.append((record["kind"], record["step"]))


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_tail, "_POLL_SECONDS", 0.01)
    return RunDirectory(tmp_path)


def write(file, *records):
    for kind, step in records:
        file.write({"kind": kind, "step": step})


@pytest.mark.parametrize("after", [0, 2])
def test_each_record_of_another_process_is_shown_once(run, after):
    bar = Bar()
    follower, file = MetricsTail(run, bar, after), MetricsFile(run, 0)
    for step in (1, 2, 3):
        write(file, ("interval", step))
        time.sleep(0.03)
    write(file, ("interval", 4))
    file.close()
    follower.close()
    assert bar.shown == [("interval", step) for step in range(after + 1, 5)]


def test_run_that_never_wrote_shows_nothing(run):
    bar = Bar()
    MetricsTail(run, bar).close()
    assert bar.shown == []


def test_resumed_follower_shows_own_records_after_replacement(run):
    bar, file = Bar(), MetricsFile(run, 0)
    write(file, ("start", 0), ("interval", 4))
    file.close()
    follower = MetricsTail(run, bar, 4)
    time.sleep(0.1)  # until the follower has opened what the launching process wrote
    file = MetricsFile(run, 4)
    write(file, ("start", 4), ("eval", 4), ("interval", 5))
    file.close()
    follower.close()
    assert bar.shown == [("start", 4), ("eval", 4), ("interval", 5)]


def test_file_that_was_removed_is_shown_on_from_where_it_was(run):
    bar, file = Bar(), MetricsFile(run, 0)
    follower = MetricsTail(run, bar)
    write(file, ("start", 0), ("interval", 1))
    eventually(lambda: len(bar.shown) == 2)
    run.metrics.unlink()
    write(file, ("interval", 2))
    file.close()
    follower.close()
    assert bar.shown == [("start", 0), ("interval", 1), ("interval", 2)]
