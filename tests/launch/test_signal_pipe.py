"""Signals that a thread reads."""

import os
import signal

from pipetrain.launch.signal_pipe import SignalPipe


def test_wait_ends_with_the_signals_that_came_or_the_files_that_can_be_read():
    pipe = SignalPipe()
    read, write = os.pipe()
    try:
        assert pipe.wait(0.0, [read]) == (b"", [])
        os.kill(os.getpid(), signal.SIGTERM)
        assert pipe.wait(5.0, [read]) == (bytes([signal.SIGTERM]), [])
        os.close(write)
        assert pipe.wait(5.0, [read]) == (b"", [read])
        pipe.wake()
        assert pipe.wait(5.0, []) == (bytes(1), [])
    finally:
        pipe.close()
        os.close(read)


def test_warning_of_a_batch_system_is_read_unless_a_users_code_takes_it_for_itself():
    pipe = SignalPipe()
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert pipe.wait(5.0, []) == (bytes([signal.SIGUSR1]), [])
        signal.signal(signal.SIGUSR1, lambda *_: None)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert pipe.wait(5.0, []) == (b"", [])
    finally:
        pipe.close()
