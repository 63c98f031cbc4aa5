"""A run in a process of a sweep's launcher ends with the sweep, and the sweep with it."""

import signal

import pytest

from pipetrain.commands.run import following, sweep
from pipetrain.engine.errors import ExitCode
from pipetrain.runner.launch.signals import Interruption


@pytest.fixture
def interruption(monkeypatch):
    made = Interruption()
    monkeypatch.setattr(following, "_interruption", made)
    return made


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, ExitCode.PREEMPTED), (signal.SIGINT, ExitCode.INTERRUPTED)]
)
def test_signal_to_one_run_stops_the_sweep_and_raises_nothing(tmp_path, interruption, number, code):
    def run():
        interruption.begin()
        interruption.handle(number, None)

    assert following.carried_out(tmp_path, run) is code
    assert sweep.stopped_by(tmp_path) == number.name
    interruption.handle(number, None)  # between two runs


def test_run_of_a_stopped_sweep_never_begins(tmp_path, interruption):
    sweep.stop(tmp_path, "SIGUSR1")
    assert following.carried_out(tmp_path, interruption.begin) is ExitCode.PREEMPTED


@pytest.mark.usefixtures("interruption")
def test_user_code_that_raises_keyboard_interrupt_ends_as_by_ctrl_c(tmp_path):
    def run():
        raise KeyboardInterrupt

    assert following.carried_out(tmp_path, run) is ExitCode.INTERRUPTED
    assert sweep.stopped_by(tmp_path) == "SIGINT"
