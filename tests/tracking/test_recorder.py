"""What the recorder makes of steps whose losses stay on the device until they are logged."""

import time

import pytest
import torch

from pipetrain.errors import DivergedError
from pipetrain.tracking.recorder import Recorder
from pipetrain.tracking.run_directory import RunDirectory


class OnDevice:
    """A loss whose reading waits for the device."""

    device = torch.device("cuda")

    def __init__(self, value, seconds=0.0):
        self.value, self.seconds = value, seconds

    def item(self):
        time.sleep(self.seconds)
        return self.value


def recorder(path, every):
    made = Recorder(RunDirectory(path), lambda _step: 0.1, [4, 4, 2], every)
    made.resume_clock()
    return made


def test_steps_share_the_time_spent_on_reading_their_losses(tmp_path):
    made = recorder(tmp_path, every=3)
    for step, value in enumerate((3.0, 2.0, 1.0)):
        made.step(step, OnDevice(value, seconds=0.02))
        assert len(made.losses) == (3 if step == 2 else 0)
    assert made.losses == [3.0, 2.0, 1.0]
    first, second, third = made.speeds
    assert first == second == 2 * third  # of 4, 4 and 2 samples
    assert first <= 4 / 0.02  # not the time that it takes to queue a step


def test_first_loss_that_is_not_finite_ends_the_run_with_a_speed_for_each_loss(tmp_path):
    made = recorder(tmp_path, every=3)
    made.step(0, OnDevice(1.0))
    made.step(1, OnDevice(float("nan")))
    with pytest.raises(DivergedError, match="2"):
        made.step(2, OnDevice(1.0))
    assert len(made.losses) == len(made.speeds) == 2
