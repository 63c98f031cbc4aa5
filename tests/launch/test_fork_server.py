"""What a forked worker finds, and what the fork server must not have."""

import multiprocessing
import os
import subprocess
import sys

import pytest

from pipetrain.launch import fork_server, worker

FOUND = """\
import os, sys
import pipetrain.launch.preload, torch
assert {"pipetrain.launch.worker", "pipetrain.models.torchvision_models"} < set(sys.modules)
print(len(os.listdir("/proc/self/task")), torch.cuda.is_initialized())
"""


@pytest.mark.slow
def test_fork_server_has_one_thread_and_leaves_cuda_alone():
    environment = {**os.environ, "OMP_NUM_THREADS": "1", fork_server.MODULES: "pipetrain.models.torchvision_models"}
    done = subprocess.run([sys.executable, "-c", FOUND], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "1 False\n", done.stderr


def test_worker_has_the_environment_that_the_launcher_has_when_it_starts(monkeypatch):
    monkeypatch.setattr(fork_server, "_environment", dict(os.environ))
    monkeypatch.setenv("ADDED", "later")
    monkeypatch.delenv("PATH")
    changed = fork_server.changes()
    assert changed == {"ADDED": "later", "PATH": None}

    monkeypatch.undo()
    monkeypatch.setenv("ADDED", "")
    monkeypatch.setenv("RANK", "1")  # of this worker, from torch's launcher
    seen = []
    monkeypatch.setattr(worker, "run_spawned", lambda job, _line: seen.append((job, dict(os.environ))))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    fork_server.run_worker("the job", changed, "the line")
    [(job, environment)] = seen
    assert (job, environment["ADDED"], environment["RANK"], "PATH" in environment) == ("the job", "later", "1", False)


def test_fork_server_imports_what_is_ours_of_the_targets_and_nothing_of_a_user(monkeypatch):
    seen = []
    monkeypatch.setattr(fork_server, "running", lambda: False)
    monkeypatch.setattr(fork_server, "_environment", {})
    monkeypatch.setattr(fork_server.forkserver, "ensure_running", lambda: seen.append(dict(os.environ)))
    fork_server.start("pipetrain.models.lenet.lenet5", "mine.build", "pipetrain.data.synthetic.synthetic_images")
    [environment] = seen
    assert environment[fork_server.MODULES] == "pipetrain.data.synthetic pipetrain.models.lenet"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert fork_server.MODULES not in os.environ
    assert fork_server.changes() == {}


def test_there_is_no_fork_server_until_one_is_started(monkeypatch):
    monkeypatch.setattr(fork_server.forkserver, "_forkserver", object())
    assert not fork_server.running()


def test_fork_server_that_ended_is_noticed_without_taking_its_exit_code(monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    server = type("Server", (), {"_forkserver_pid": ended.pid})
    monkeypatch.setattr(fork_server.forkserver, "_forkserver", server)
    assert fork_server.running()
    ended.stdin.close()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert not fork_server.running()
    assert ended.wait() == 1  # EOFError


def test_way_of_starting_processes_that_python_does_not_know_is_forgotten(monkeypatch):
    class Loky:
        _name = "loky"

    monkeypatch.setattr(multiprocessing.context._default_context, "_actual_context", Loky())
    fork_server._forget_foreign_method()
    assert multiprocessing.get_start_method(allow_none=True) is None
