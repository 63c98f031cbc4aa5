"""One run at a time writes to a directory."""

import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.tracking import run_lock
from pipetrain.runner.tracking.run_lock import NAME, locked, owner_of

HOLD = """
import pathlib, sys, time
from pipetrain.runner.tracking.run_lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(run_lock, "_PAUSE_SECONDS", 0.001)


@pytest.fixture
def holder(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def left_by(host, folder, seconds_ago):
    path = folder / NAME
    path.write_text(json.dumps({"pid": 4711, "host": host, "since": "2026-01-02 03:04:05"}))
    then = time.time() - seconds_ago
    os.utime(path, (then, then))
    return path


def test_second_process_is_refused_naming_the_first(tmp_path, holder):
    owner = owner_of(tmp_path)
    assert (owner.pid, owner.host) == (holder.pid, socket.gethostname())
    expected = f"another run is writing here \\(process {holder.pid} on {re.escape(owner.host)}, since "
    with pytest.raises(ConfigError, match=expected), locked(tmp_path):
        pass
    assert owner_of(tmp_path) == owner


def test_lock_of_a_killed_process_is_free_at_once(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert owner_of(tmp_path) is None
    with locked(tmp_path):
        assert owner_of(tmp_path).pid == os.getpid()


@pytest.mark.parametrize("how", ["exit_now", "kill_tree_and_exit"])
def test_process_ending_at_once_leaves_no_lock(tmp_path, how):
    script = HOLD.replace("time.sleep(60)", f"from pipetrain.runner.launch import process_exit; process_exit.{how}(75)")
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)]).returncode == 75
    assert list(tmp_path.iterdir()) == []


def test_lock_leaves_nothing_behind(tmp_path):
    with locked(tmp_path / "new"):
        assert (tmp_path / "new" / NAME).exists()
    assert list((tmp_path / "new").iterdir()) == []
    assert owner_of(tmp_path / "new") is None
    with locked(tmp_path / "run"):  # whose directory is removed
        (tmp_path / "run" / NAME).unlink()
        (tmp_path / "run").rmdir()
    assert not (tmp_path / "run").exists()


def test_forked_child_does_not_keep_the_lock(tmp_path):
    with locked(tmp_path):
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            os.read(reads, 1)
            os._exit(0)
    with locked(tmp_path):
        pass
    os.write(writes, b"x")
    os.waitpid(child, 0)


def test_child_of_a_forked_child_keeps_the_files_of_its_parent(tmp_path):
    def exit_code(body):
        child = os.fork()
        if not child:
            os._exit(body())
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def open_a_file_and_fork():
        file = os.open(os.devnull, os.O_RDONLY)  # under the number that the lock had
        return exit_code(lambda: 0 if _is_open(file) else 1)

    with locked(tmp_path):
        assert exit_code(open_a_file_and_fork) == 0


def _is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_lock_of_another_machine_counts_until_it_has_been_silent(tmp_path):
    path = left_by("elsewhere", tmp_path, seconds_ago=60)
    assert owner_of(tmp_path).host == "elsewhere"
    expected = f"process 4711 on elsewhere.*remove {path}, or wait 5 minutes"
    with pytest.raises(ConfigError, match=expected), locked(tmp_path):
        pass
    left_by("elsewhere", tmp_path, seconds_ago=run_lock.DEAD_SECONDS + 60)
    assert owner_of(tmp_path) is None
    with locked(tmp_path):
        assert owner_of(tmp_path).pid == os.getpid()


def test_owner_shows_that_it_is_alive(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "SIGN_OF_LIFE_SECONDS", 0.01)
    with locked(tmp_path):
        os.utime(tmp_path / NAME, (0, 0))
        deadline = time.monotonic() + 10
        while (tmp_path / NAME).stat().st_mtime < 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_file_system_without_locks_leaves_it_to_the_file_and_says_so_once(tmp_path, monkeypatch, capsys):
    def unsupported(_descriptor, _kind):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with locked(tmp_path):
        assert owner_of(tmp_path).pid == os.getpid()
        with pytest.raises(ConfigError, match="another run is writing here"), locked(tmp_path):
            pass
    with locked(tmp_path):
        pass
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pipetrain: warning: {tmp_path}: this file system has no locks")


def test_folder_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file: a run cannot write here \(File exists\)"), locked(tmp_path / "file"):
        pass
