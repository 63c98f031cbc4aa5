"""Signals to a run that trains."""

import contextlib
import os
import signal
import threading
import time

import pytest

from pipetrain.launch.breaking_off import broken_off_by
from pipetrain.launch.signals import Interruption


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

    with pytest.raises(KeyboardInterrupt), broken_off_by(stop, 60, Interruption()):
        twice()
    assert stops == [0]
    assert signal.getsignal(signal.SIGINT) is before


def test_run_that_takes_too_long_to_stop_is_interrupted(capfd):
    with pytest.raises(KeyboardInterrupt), broken_off_by(lambda: True, 0.1, Interruption()):
        kill(then=5)
    assert "launch.stop_timeout=0.1 s" in capfd.readouterr().out


def test_signal_interrupts_at_once_where_there_is_nothing_to_save_yet():
    with pytest.raises(KeyboardInterrupt), broken_off_by(lambda: False, 60, Interruption()):
        kill()


def test_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with broken_off_by(lambda: False, 60, Interruption()):
            kill(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signal_is_known_after_a_run_that_completed_all_the_same():
    interruption = Interruption()
    with contextlib.suppress(KeyboardInterrupt), broken_off_by(lambda: False, 60, interruption):
        kill()
    with pytest.raises(KeyboardInterrupt):
        interruption.check()


def test_handler_of_a_signal_starts_no_thread_as_it_may_have_interrupted_anything():
    with broken_off_by(lambda: True, 60, Interruption()):
        before = threading.active_count()
        kill()
        assert threading.active_count() == before
    assert threading.active_count() == before - 1


def test_signal_is_not_sent_once_more_to_a_run_that_has_ended_in_time():
    with broken_off_by(lambda: True, 0.05, Interruption()):
        kill(then=0)
    time.sleep(0.1)
