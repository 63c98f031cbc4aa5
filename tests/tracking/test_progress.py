"""What the terminal shows of a run."""

import time

import pytest

from pipetrain.tracking.metrics_file import MetricsFile
from pipetrain.tracking.progress import Follower, ProgressBar
from pipetrain.tracking.run_directory import RunDirectory


def of_step(step, epoch=0):
    return {"step": step, "epoch": epoch, "loss": 2.0, "samples_per_second": 100.0}


def of_epoch(step, epoch, **more):
    return {"step": step, "epoch": epoch, "loss": 1.5, "per_stage": [], **more}


def test_every_epoch_is_a_line_also_without_a_terminal(capsys):
    bar = ProgressBar(8, 2)
    for record in (of_step(1), of_epoch(4, 0, eval={"loss": 1.25, "top1": 60.0}), of_epoch(8, 1, loss=None)):
        bar.update(record)
    bar.close()
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1/2 | step 4 | train loss 1.5000 | eval loss 1.25 top1 60",
        "epoch 2/2 | step 8",
    ]


class Shown:
    """A bar that keeps what it is given."""

    def __init__(self):
        self.steps = []
        self.closed = False

    def update(self, record):
        self.steps.append(record["step"])

    def close(self):
        self.closed = True


@pytest.mark.parametrize("after", [0, 2])
def test_follower_shows_each_record_of_another_process_once(tmp_path, after):
    run, bar = RunDirectory(tmp_path), Shown()
    follower = Follower(run, bar, after)
    file = MetricsFile(run, 0)
    for step in (1, 2, 3):
        file.write(of_step(step))
        time.sleep(0.05)
    file.write(of_step(4))
    file.close()
    follower.close()
    assert bar.steps == list(range(after + 1, 5))
    assert bar.closed


def test_follower_of_a_run_that_never_wrote_shows_nothing(tmp_path):
    bar = Shown()
    Follower(RunDirectory(tmp_path), bar).close()
    assert (bar.steps, bar.closed) == ([], True)
