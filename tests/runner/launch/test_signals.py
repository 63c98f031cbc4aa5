"""Signals that end a run raise KeyboardInterrupt, once around a run, and are given back."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest
from support.waiting import eventually

from pipetrain.engine.errors import PreemptedError
from pipetrain.engine.processes import ENDING
from pipetrain.runner.launch.signals import Interruption, SignalPipe, blocked, interruptible, passed_on


@pytest.mark.parametrize("number", ENDING)
def test_signal_raises_in_run_and_is_restored_afterwards(number):
    seen = []
    before = signal.signal(number, lambda *_: seen.append(number))
    try:
        with pytest.raises(KeyboardInterrupt, match=signal.Signals(number).name) as end, interruptible():
            os.kill(os.getpid(), number)
        assert seen == []
        assert (end.type is PreemptedError) == (number in (signal.SIGTERM, signal.SIGUSR1)), "of a batch system"
        os.kill(os.getpid(), number)
        assert seen == [number]
    finally:
        signal.signal(number, before)


def test_signal_lost_in_import_ends_run_at_next_check():
    with interruptible() as interruption:
        interruption.check()
        with contextlib.suppress(BaseException):  # as libraries do around imports of their own
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt, match="SIGINT"):
            interruption.check()


def test_signal_that_was_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signal_after_settled_run_ends_only_what_comes_next():
    with interruptible() as interruption:
        interruption.settle()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt, match="SIGINT"):
            interruption.begin()


def test_run_in_another_thread_leaves_signals_alone():
    before = [signal.getsignal(number) for number in ENDING]
    inside = []

    def run():
        with interruptible():
            inside.extend(signal.getsignal(number) for number in ENDING)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert inside == before


def test_start_blocks_terminal_signals_but_not_sigterm():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with blocked():
        inside = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert {signal.SIGINT, signal.SIGHUP, signal.SIGQUIT} <= inside
    assert signal.SIGTERM not in inside
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_first_signal_is_passed_on_to_other_processes_and_the_second_raises():
    passed, before = [], signal.getsignal(signal.SIGTERM)

    def twice():
        os.kill(os.getpid(), signal.SIGTERM)
        eventually(lambda: passed == ["SIGTERM"])
        os.kill(os.getpid(), signal.SIGTERM)
        eventually(lambda: False)

    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), passed_on(passed.append):
        twice()
    assert passed == ["SIGTERM"]
    assert signal.getsignal(signal.SIGTERM) is before
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_process_that_is_started_to_carry_out_runs_begins_with_signals_blocked():
    code = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    with passed_on(lambda _name: None):
        done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{sorted(ENDING)}\n"


def test_patient_interruption_ends_a_run_once():
    interruption = Interruption()
    interruption.patient = True
    with pytest.raises(KeyboardInterrupt):
        interruption.handle(signal.SIGTERM, None)
    interruption.handle(signal.SIGTERM, None)
    interruption.handle(signal.SIGINT, None)
    assert interruption.name == "SIGTERM"


@pytest.fixture
def pipe():
    made = SignalPipe()
    yield made
    made.close()


def test_wait_ends_with_the_signals_that_came(pipe):
    assert pipe.wait(0.0) == b""
    os.kill(os.getpid(), signal.SIGTERM)
    assert pipe.wait(5.0) == bytes([signal.SIGTERM])
    pipe.wake()
    assert pipe.wait(5.0) == bytes(1)


def test_batch_system_warning_is_read_unless_user_handles_it(pipe):
    os.kill(os.getpid(), signal.SIGUSR1)
    assert pipe.wait(5.0) == bytes([signal.SIGUSR1])
    signal.signal(signal.SIGUSR1, lambda *_: None)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert pipe.wait(0.2) == b""
