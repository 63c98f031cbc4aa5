"""Exit of a process: with the process that started the run, or immediately.

The system reports the death of a launcher, not the store of the heartbeats: the store may belong to another process, a
store that does not answer may merely be busy, and a stopped worker reads nothing. This module imports little, so that
it works before torch is imported.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import NoReturn

from pipetrain.engine.processes import die_with_parent
from pipetrain.runner.launch import master
from pipetrain.runner.tracking import run_lock

EXIT_LOST = 75
"""Exit code of a worker that lost a neighbor or its launcher (EX_TEMPFAIL)."""

orphaned = threading.Event()
"""Set when the parent that this process follows is gone."""

_POLL_SECONDS = 0.5
_LAST_SECONDS = 3.0


def exit_with_launcher() -> None:
    """Exits when the launcher dies, even after reparenting."""
    launcher = multiprocessing.parent_process()
    if launcher is not None:
        die_with_parent(signal.SIGKILL)  # even if it is stopped, or holds the interpreter's lock
        _exit_after(lambda: wait([launcher.sentinel]))


def exit_with_parent() -> None:
    """Ends this process when its parent does, which is an outer launcher such as torchrun."""
    parent = os.getppid()

    def until_gone() -> None:
        # else the parent had ended before this process could ask for its number
        alive = not (master.is_torchruns() and isinstance(master.connection_error(), ConnectionRefusedError))
        while alive and os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        orphaned.set()
        os.kill(os.getpid(), signal.SIGTERM)  # the process's watcher records how the run ended
        time.sleep(_LAST_SECONDS)

    _exit_after(until_gone)


def kill_tree_and_exit(code: int) -> NoReturn:
    """Ends this process and its children, from any thread, even if the main thread hangs."""
    for child in multiprocessing.active_children():
        with contextlib.suppress(Exception):  # its main thread may be about to end it, too
            child.kill()
    run_lock.free_all()
    os._exit(code)


def exit_now(code: int) -> NoReturn:
    """Ends this process from its main thread, without the interpreter's finalization.

    That would wait for the user's threads and processes, and a thread that still reads or sends would abort it.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    kill_tree_and_exit(code)


def exit_despite_user_threads(code: int) -> None:
    """Ends this process if the user's threads would keep it from ending for long."""
    deadline = time.monotonic() + _LAST_SECONDS
    others = [each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in others):
        exit_now(code)


def _exit_after(until_gone: Callable[[], object]) -> None:
    def follow() -> None:
        until_gone()
        kill_tree_and_exit(EXIT_LOST)

    threading.Thread(target=follow, name="exit with parent", daemon=True).start()
