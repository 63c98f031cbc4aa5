"""Signals that a thread reads."""

import os
import signal

from pipetrain.launch.signal_pipe import SignalPipe


def test_wait_ends_with_the_signals_that_came():
    pipe = SignalPipe()
    try:
        assert pipe.wait(0.0) == b""
        os.kill(os.getpid(), signal.SIGTERM)
        assert pipe.wait(5.0) == bytes([signal.SIGTERM])
        pipe.wake()
        assert pipe.wait(5.0) == bytes(1)
    finally:
        pipe.close()


def test_warning_of_a_batch_system_is_read_unless_a_users_code_takes_it_for_itself():
    pipe = SignalPipe()
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert pipe.wait(5.0) == bytes([signal.SIGUSR1])
        signal.signal(signal.SIGUSR1, lambda *_: None)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert pipe.wait(5.0) == b""
    finally:
        pipe.close()
