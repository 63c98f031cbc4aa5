"""The process that a run's workers are forked from, which imports what they need while the launcher prepares the run.

The launcher is the parent of the fork server, and the fork server is the parent of the workers. The system kills the
fork server when the launcher dies, and the workers when the fork server does; `multiprocessing.parent_process()` is the
launcher in a worker, too. A process that forks must not have threads: the fork server starts none, has no
pool of OpenMP's, and does not touch CUDA. Each worker sets its own number of threads and its own device.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing import forkserver, resource_tracker
from typing import Final

from pipetrain.runner.launch.signals import blocked

METHOD: Final = "forkserver"
"""Name of this start method in multiprocessing."""

EXIT_UNKNOWN = 255
"""Exit code that multiprocessing reports for a process whose fork server is gone."""
MODULES = "PIPETRAIN_PRELOAD"
"""Environment variable with the modules that the fork server imports in addition to those every worker needs."""

_PRELOAD = "pipetrain.runner.launch.preload"
_POLL_SECONDS = 0.02


def start(*targets: str) -> None:
    """Starts the fork server, unless it is running. Its imports continue after this returns.

    The system kills it when the thread that has started it ends, so that is the main thread, or one that never ends.

    Args:
        targets: dotted paths that workers will call. The fork server imports pipetrain's modules; a user's may start
            threads, or touch CUDA.
    """
    if threading.current_thread() is threading.main_thread() or not has_ended(within=0.0):
        _start(targets)
        return
    done: Future[None] = Future()

    def live() -> None:
        try:
            _start(targets)
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)
        threading.Event().wait()

    threading.Thread(target=live, name="parent of the fork server", daemon=True).start()
    done.result()


def _start(targets: Sequence[str]) -> None:
    from unittest import mock  # which takes a while to import

    # a process of joblib's has a start method that its children do not know, and would inherit
    if multiprocessing.get_start_method(allow_none=True) not in (None, *multiprocessing.get_all_start_methods()):
        multiprocessing.set_start_method(None, force=True)
    multiprocessing.get_context(METHOD).set_forkserver_preload([_PRELOAD])
    with blocked():  # the fork server needs it; its start unblocks some signals, so it needs a separate block
        resource_tracker.ensure_running()
    # a linear algebra library that numpy brings may start its threads when it is imported
    modules = {path.rpartition(".")[0] for path in targets if path.startswith("pipetrain.")}
    with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1", MODULES: " ".join(sorted(modules))}), blocked():
        forkserver.ensure_running()


def has_ended(within: float = 1.0) -> bool:
    """True if the fork server ends within this many seconds; its pipes close slightly earlier."""
    pid, deadline = _pid(), time.monotonic() + within
    while pid is not None and not _has(pid, os.WEXITED):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def go_on() -> None:
    """Continues a stopped fork server: the launcher learns only from it how a worker has ended."""
    pid = _pid()
    with contextlib.suppress(ChildProcessError, ProcessLookupError):  # it has ended
        if pid is not None and _has(pid, os.WSTOPPED):
            os.kill(pid, signal.SIGCONT)


def _pid() -> int | None:
    return getattr(forkserver._forkserver, "_forkserver_pid", None)


def _has(pid: int, state: int) -> bool:
    """True if a child is in `state`, ended or stopped; leaves it waitable, as multiprocessing waits for it, too."""
    return os.waitid(os.P_PID, pid, state | os.WNOHANG | os.WNOWAIT) is not None
