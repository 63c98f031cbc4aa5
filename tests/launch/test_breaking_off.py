"""Signals to a run that trains."""

import contextlib
import os
import signal
import time

import pytest

from pipetrain.launch.breaking_off import broken_off_by


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

    with pytest.raises(KeyboardInterrupt), broken_off_by(stop, 60):
        twice()
    assert stops == [0]
    assert signal.getsignal(signal.SIGINT) is before


def test_run_that_takes_too_long_to_stop_is_interrupted(capfd):
    with pytest.raises(KeyboardInterrupt), broken_off_by(lambda: True, 0.1):
        kill(then=5)
    assert "launch.stop_timeout=0.1 s" in capfd.readouterr().out


def test_signal_interrupts_at_once_where_there_is_nothing_to_save_yet():
    with pytest.raises(KeyboardInterrupt), broken_off_by(lambda: False, 60):
        kill()


def test_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with broken_off_by(lambda: False, 60):
            kill(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signal_is_known_after_a_run_that_completed_all_the_same():
    with broken_off_by(lambda: False, 60) as interruption, contextlib.suppress(KeyboardInterrupt):
        kill()
    with pytest.raises(KeyboardInterrupt):
        interruption.check()
