"""Processes end with the one that started the run."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from process_tree import is_alive
from support.processes import needs_proc

pytestmark = needs_proc

LAUNCHER = """
import multiprocessing, sys, time
from pipetrain.runner.launch import process_exit

def worker(pid):
    process_exit.exit_with_launcher()
    pid.send(multiprocessing.current_process().pid)
    time.sleep(60)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    receiver, sender = context.Pipe(duplex=False)
    context.Process(target=worker, args=(sender,)).start()
    print(receiver.recv(), flush=True)
    time.sleep(60)
"""

OUTER = '''
import subprocess, sys, time
inner = """
import time
from pipetrain.runner.launch import process_exit
process_exit.exit_with_parent()
print(1, flush=True)
time.sleep(60)
"""
process = subprocess.Popen([sys.executable, "-c", inner], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
time.sleep(60)
'''


def ends_with(script, *arguments, stopped=False):
    """Whether a process that the script starts is gone 5 s after the script was killed."""
    launcher = subprocess.Popen([sys.executable, *script, *arguments], stdout=subprocess.PIPE, text=True)
    pid = int(launcher.stdout.readline())
    try:
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        launcher.kill()
        deadline = time.monotonic() + 5
        while is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        return not is_alive(pid)
    finally:
        launcher.wait()
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("method", "stopped"), [("spawn", False), ("spawn", True), ("forkserver", False)])
def test_worker_ends_when_its_launcher_is_killed(tmp_path, method, stopped):
    script = tmp_path / "launcher.py"
    script.write_text(LAUNCHER)
    assert ends_with([str(script)], method, stopped=stopped)


def test_worker_of_an_outer_launcher_ends_when_that_is_killed():
    assert ends_with(["-c", OUTER])


def test_worker_ends_if_outer_launcher_died_before_it_started():
    with socket.create_server(("127.0.0.1", 0)) as store:
        port = store.getsockname()[1]
    script = (
        "from pipetrain.runner.launch import process_exit; import time; process_exit.exit_with_parent(); time.sleep(60)"
    )
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    worker = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, **agent})
    assert worker.wait(timeout=20) == -signal.SIGTERM


@pytest.mark.parametrize(("seconds", "shown"), [(0.2, "the thread's word\nthe last word\n"), (60, "")])
def test_thread_that_goes_on_keeps_the_command_only_for_a_moment(seconds, shown):
    script = f"""
import threading, time
from pipetrain.runner.launch import process_exit
process_exit._LAST_SECONDS = 1.0

def work():
    time.sleep({seconds})
    print("the thread's word")

threading.Thread(target=work).start()
process_exit.exit_despite_user_threads(3)
print("the last word")
"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == (shown, 0 if shown else 3)
    assert time.monotonic() - began < 20
