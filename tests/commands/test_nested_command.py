"""Commands that a command starts and waits for."""

import os
import signal
import sys
import threading
import time

import pytest

from pipetrain.commands.nested_command import carried_out

CHILD = """
import os, pathlib, signal, sys, time
signal.signal(signal.{name}, lambda *_: sys.exit(75))
assert os.getpgrp() == os.getpid()
pathlib.Path({ready!r}).touch()
time.sleep(60)
"""


def test_exit_code_is_that_of_the_command():
    assert carried_out([sys.executable, "-c", "raise SystemExit(3)"]) == 3


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_is_passed_on_and_the_end_of_the_command_waited_for(tmp_path, name):
    ready, number = tmp_path / "ready", getattr(signal, name)

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    assert carried_out([sys.executable, "-c", CHILD.format(name=name, ready=str(ready))]) == 75
    thread.join()
    assert signal.getsignal(number) is before
