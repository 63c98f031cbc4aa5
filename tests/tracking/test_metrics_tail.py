"""Records of another process, shown by this one."""

import time

import pytest
from support.waiting import eventually

from pipetrain.tracking.metrics_tail import MetricsTail
from pipetrain.tracking.records import MetricsFile
from pipetrain.tracking.run_directory import RunDirectory


def of_steps(step):
    return {"kind": "interval", "step": step}


class Shown:
    """A bar that keeps what it is given."""

    def __init__(self):
        self.steps = []

    def update(self, record):
        self.steps.append(record["step"])


@pytest.mark.parametrize("after", [0, 2])
def test_follower_shows_each_record_of_another_process_once(tmp_path, after):
    run, bar = RunDirectory(tmp_path), Shown()
    follower = MetricsTail(run, bar, after)
    file = MetricsFile(run, 0)
    for step in (1, 2, 3):
        file.write(of_steps(step))
        time.sleep(0.05)
    file.write(of_steps(4))
    file.close()
    follower.close()
    assert bar.steps == list(range(after + 1, 5))


def test_follower_of_a_run_that_never_wrote_shows_nothing(tmp_path):
    bar = Shown()
    MetricsTail(RunDirectory(tmp_path), bar).close()
    assert bar.steps == []


class Noting:
    def __init__(self):
        self.shown = []

    def update(self, record):
        self.shown.append((record["kind"], record["step"]))

    def close(self):
        pass


def test_resumed_follower_shows_own_records_after_replacement(tmp_path):
    run, bar = RunDirectory(tmp_path), Noting()
    file = MetricsFile(run, 0)
    for record in ({"kind": "start", "step": 0}, of_steps(4)):
        file.write(record)
    file.close()
    follower = MetricsTail(run, bar, 4)
    time.sleep(0.5)  # until the follower has opened what the launching process wrote
    file = MetricsFile(run, 4)
    for record in ({"kind": "start", "step": 4}, {"kind": "eval", "step": 4}, of_steps(5)):
        file.write(record)
    file.close()
    follower.close()
    assert bar.shown == [("start", 4), ("eval", 4), ("interval", 5)]


def test_file_that_was_removed_is_shown_on_from_where_it_was(tmp_path):
    run, bar = RunDirectory(tmp_path), Noting()
    file, follower = MetricsFile(run, 0), MetricsTail(run, bar)
    file.write({"kind": "start", "step": 0})
    file.write(of_steps(1))
    eventually(lambda: len(bar.shown) == 2)
    run.metrics.unlink()
    file.write(of_steps(2))
    file.close()
    follower.close()
    assert bar.shown == [("start", 0), ("interval", 1), ("interval", 2)]
