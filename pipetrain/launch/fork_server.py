"""The process that a run's workers are forked from, which imports what they need while the launcher prepares the run.

The launcher is the parent of the fork server, and the fork server is the parent of the workers. The system kills the
fork server when the launcher dies, and the workers when the fork server does; `multiprocessing.parent_process()` is the
launcher in a worker, too. What must not be there when a process forks is not there: the fork server starts no thread,
has no pool of OpenMP's, and does not touch CUDA. Each worker sets its own number of threads and its own device.
"""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Mapping
from multiprocessing import forkserver, resource_tracker
from typing import TYPE_CHECKING

from pipetrain.launch.signals import blocked

if TYPE_CHECKING:
    from pipetrain.launch.lines import WorkerLines
    from pipetrain.run.job import Job

METHOD = "forkserver"
"""How multiprocessing calls this way of starting processes."""

EXIT_UNKNOWN = 255
"""What multiprocessing takes for the exit code of a process whose fork server is gone."""
MODULES = "PIPETRAIN_PRELOAD"
"""The environment variable that tells the fork server which modules to import beside what every worker needs."""

_PRELOAD = "pipetrain.launch.preload"

Environment = Mapping[str, str | None]
"""Environment variables by name; None for one that is not set."""

_environment: dict[str, str] = {}
"""The fork server's own environment."""


def start(*targets: str) -> None:
    """Starts the fork server, unless there is one. Its imports go on when this returns.

    Args:
        targets: what workers will call. Modules of pipetrain's own are imported before they are forked; a user's may
            start threads, or touch CUDA.
    """
    from unittest import mock  # not for those who start none: it takes a while to import

    if running():
        return
    _environment.clear()
    _environment.update(os.environ)
    _forget_foreign_method()
    multiprocessing.get_context(METHOD).set_forkserver_preload([_PRELOAD])
    with blocked():  # the fork server needs it; its start unblocks some signals, so it has a block of its own
        resource_tracker.ensure_running()
    # a linear algebra library that numpy brings may start its threads when it is imported
    modules = {path.rpartition(".")[0] for path in targets if path.startswith("pipetrain.")}
    with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1", MODULES: " ".join(sorted(modules))}), blocked():
        forkserver.ensure_running()


def _forget_foreign_method() -> None:
    """A process of joblib's has a way of starting others that those do not know; Python hands it on to them."""
    if multiprocessing.get_start_method(allow_none=True) not in (None, *multiprocessing.get_all_start_methods()):
        multiprocessing.set_start_method(None, force=True)


def running() -> bool:
    """Whether there is a fork server, and it has not ended."""
    pid = _pid()
    return pid is not None and not _has(pid, os.WEXITED)


def go_on() -> None:
    """Has a fork server that was stopped go on: the launcher hears from it alone how a worker has ended."""
    pid = _pid()
    with contextlib.suppress(ChildProcessError, ProcessLookupError):  # it has ended
        if pid is not None and _has(pid, os.WSTOPPED):
            os.kill(pid, signal.SIGCONT)


def _pid() -> int | None:
    return getattr(forkserver._forkserver, "_forkserver_pid", None)


def _has(pid: int, state: int) -> bool:
    """Whether a child has ended, or is stopped; as seen from outside: multiprocessing waits for it by itself."""
    return os.waitid(os.P_PID, pid, state | os.WNOHANG | os.WNOWAIT) is not None


def changes() -> Environment:
    """What has changed in this process's environment since the fork server started, by a user's code or by Hydra."""
    names = {*_environment, *os.environ}
    return {name: os.environ.get(name) for name in names if _environment.get(name) != os.environ.get(name)}


def run_worker(job: "Job", changed: Environment, lines: "WorkerLines") -> None:
    """Runs the stages of this process, which was forked, in the launcher's environment."""
    from pipetrain.launch.worker import run_spawned

    # a user's code starts processes as in any other program: a fork server of its own would outlive a killed worker
    multiprocessing.set_start_method(None, force=True)
    for name, value in changed.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    run_spawned(job, lines)
