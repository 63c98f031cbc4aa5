"""The graceful stop of a run."""

import contextlib
import os
import signal
import threading
import time

import pytest

from pipetrain.runner.launch.graceful_stop import drain_on_signal
from pipetrain.runner.launch.signals import Interruption


def kill(number=signal.SIGINT, then=0.01):
    os.kill(os.getpid(), number)
    time.sleep(then)


def test_first_signal_stops_and_the_second_interrupts():
    stops = []
    before = signal.getsignal(signal.SIGINT)

    def stop():
        stops.append(len(stops))
        return True

    def twice():
        kill()
        assert stops == [0]
        kill()

    with pytest.raises(KeyboardInterrupt), drain_on_signal(stop, 60, Interruption()):
        twice()
    assert stops == [0]
    assert signal.getsignal(signal.SIGINT) is before


def test_run_that_takes_too_long_to_stop_is_interrupted(capfd):
    with pytest.raises(KeyboardInterrupt), drain_on_signal(lambda: True, 0.1, Interruption()):
        kill(then=5)
    assert "launch.stop_timeout=0.1 s" in capfd.readouterr().out


@pytest.mark.parametrize("too_long", [False, True])
def test_repeated_signal_does_not_hurry_a_patient_run(capfd, too_long):
    interruption = Interruption()
    interruption.patient = True
    ends = pytest.raises(KeyboardInterrupt) if too_long else contextlib.nullcontext()
    with ends, drain_on_signal(lambda: True, 0.1 if too_long else 60, interruption):
        kill()
        kill(then=5 if too_long else 0.01)
    assert "again" not in capfd.readouterr().out


def test_signal_interrupts_at_once_before_anything_to_save():
    with pytest.raises(KeyboardInterrupt), drain_on_signal(lambda: False, 60, Interruption()):
        kill()


def test_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with drain_on_signal(lambda: False, 60, Interruption()):
            kill(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signal_is_known_after_a_run_that_completed_all_the_same():
    interruption = Interruption()
    with contextlib.suppress(KeyboardInterrupt), drain_on_signal(lambda: False, 60, interruption):
        kill()
    with pytest.raises(KeyboardInterrupt):
        interruption.check()


def test_signal_handler_starts_no_thread():
    with drain_on_signal(lambda: True, 60, Interruption()):
        before = threading.active_count()
        kill()
        assert threading.active_count() == before
    assert threading.active_count() == before - 1


def test_signal_is_not_resent_to_run_that_ended_in_time():
    with drain_on_signal(lambda: True, 0.05, Interruption()):
        kill(then=0)
    time.sleep(0.1)
