"""What a forked worker finds, and what the fork server must not have."""

import multiprocessing
import os
import subprocess
import sys
import textwrap

import pytest

from pipetrain.runner.launch import fork_server

FOUND = """\
import os, sys
import pipetrain.runner.launch.preload, torch
assert {"pipetrain.runner.launch.worker", "pipetrain.zoo.models.torchvision_models"} < set(sys.modules)
print(len(os.listdir("/proc/self/task")), torch.cuda.is_initialized())
"""


@pytest.mark.slow
def test_fork_server_has_one_thread_and_leaves_cuda_alone():
    environment = {**os.environ, "OMP_NUM_THREADS": "1", fork_server.MODULES: "pipetrain.zoo.models.torchvision_models"}
    done = subprocess.run([sys.executable, "-c", FOUND], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "1 False\n", done.stderr


def output(tmp_path, body):
    """What a program prints, whose main process runs this."""
    script = tmp_path / "program.py"
    head = "import multiprocessing, threading, time\nfrom pipetrain.runner.launch import fork_server\n"
    script.write_text(f"{head}if __name__ == '__main__':\n{textwrap.indent(body, '    ')}")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


IGNORED = """
fork_server.start()
process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(60,), daemon=True)
process.start()
time.sleep(0.5)
process.terminate()
process.join(20)
print(process.exitcode)
"""
OF_A_THREAD = """
thread = threading.Thread(target=fork_server.start)
thread.start()
thread.join()
print(fork_server.has_ended(2.0))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("body", "said"), [(IGNORED, "-15\n"), (OF_A_THREAD, "False\n")], ids=["SIGTERM", "thread"])
def test_programs_processes_heed_sigterm_and_the_server_outlives_its_thread(tmp_path, body, said):
    assert output(tmp_path, body) == said


def test_fork_server_imports_only_pipetrain_targets(monkeypatch):
    seen = []
    monkeypatch.setattr(fork_server.forkserver, "ensure_running", lambda: seen.append(dict(os.environ)))
    fork_server.start(
        "pipetrain.zoo.models.small_images.lenet5", "mine.build", "pipetrain.zoo.data.images.synthetic.synthetic_images"
    )
    [environment] = seen
    assert environment[fork_server.MODULES] == "pipetrain.zoo.data.images.synthetic pipetrain.zoo.models.small_images"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert fork_server.MODULES not in os.environ


def test_ended_fork_server_is_noticed_without_reaping_it(monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    server = type("Server", (), {"_forkserver_pid": ended.pid})
    monkeypatch.setattr(fork_server.forkserver, "_forkserver", server)
    assert not fork_server.has_ended(within=0.0)
    ended.stdin.close()
    assert fork_server.has_ended(within=20.0)
    assert ended.wait() == 1  # EOFError


def test_unknown_start_method_is_dropped(monkeypatch):
    class Loky:
        _name = "loky"

    monkeypatch.setattr(multiprocessing.context._default_context, "_actual_context", Loky())
    for module in (fork_server.forkserver, fork_server.resource_tracker):
        monkeypatch.setattr(module, "ensure_running", lambda: None)
    fork_server.start()
    assert multiprocessing.get_start_method(allow_none=True) is None
