"""Processes that read samples end with their parent, and with nothing else."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from process_tree import children, is_alive
from support.processes import environment, needs_proc
from support.waiting import eventually

from pipetrain.engine.processes import ENDING

pytestmark = needs_proc

READING = """
import signal, sys, torch
from pipetrain.data.loader import Loader

class Samples:
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        return torch.zeros(1), 0

if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: None)
    reading = Loader(Samples(), batch_size=2, workers=2).samples(0)
    next(reading)
    print("reads", flush=True)
    for line in sys.stdin:
        for _ in range(20):
            next(reading)
        print("reads on", flush=True)
    reading.close()
    print("done", flush=True)
"""


LEFT = """
import os, signal, sys, time
from pipetrain.data.reader_process import ReaderContext, leave_signals

def read():
    leave_signals(0)
    os.write(ready, b"1")
    time.sleep(10**6)

begun, ready = os.pipe()
reader = ReaderContext().Process(target=read, daemon=True)
reader.start()
signal.signal(signal.SIGCHLD, lambda *_: 1 / 0)  # as torch's, for a reader that is killed
os.read(begun, 1)
sys.exit(3)
"""


@pytest.fixture
def reading(tmp_path):
    script = tmp_path / "reading.py"
    script.write_text(READING)
    process = subprocess.Popen(
        [sys.executable, script], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "reads\n"
    readers = children(process.pid)
    yield process, readers
    for pid in (process.pid, *readers):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()


def test_reader_processes_end_with_parent_even_if_stopped(reading):
    process, readers = reading
    assert len(readers) == 2
    os.kill(readers[0], signal.SIGSTOP)
    process.kill()
    eventually(lambda: not any(map(is_alive, readers)), seconds=5)


def test_exit_does_not_wait_for_a_reader_that_is_left():
    done = subprocess.run([sys.executable, "-c", LEFT], env=environment(), stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (3, b"")


@pytest.mark.slow
def test_group_signals_do_not_stop_readers_before_parent(reading):
    process, readers = reading
    for number in ENDING:
        for reader in readers:
            os.kill(reader, number)
    time.sleep(0.2)
    print(file=process.stdin, flush=True)
    assert process.stdout.readline() == "reads on\n"
    assert all(map(is_alive, readers))
    out, _ = process.communicate(timeout=20)
    assert (out, process.returncode) == ("done\n", 0)
    assert not any(map(is_alive, readers))
