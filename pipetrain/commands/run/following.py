"""A run of a sweep in a process that its launcher has started, such as one of joblib's.

It ends with the sweep, which nothing else makes it do: such a process gets no signal that is sent to the command alone,
and outlives a command that is killed.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pipetrain.commands.run import sweep
from pipetrain.engine.errors import ExitCode
from pipetrain.runner.launch.process_exit import EXIT_LOST, kill_tree_and_exit
from pipetrain.runner.launch.signals import Interruption, follow_from_now_on
from pipetrain.runner.tracking.run_lock import owner_of

_POLL_SECONDS = 0.5
_LOOKS = 2
"""Number of times in a row that the sweep's lock must be found free."""
_LAST_SECONDS = 3.0

_interruption: Interruption | None = None
"""Interruption of this process, once it follows a sweep."""


def carried_out(folder: Path, run: Callable[[], ExitCode]) -> ExitCode:
    """Exit code of a run of the sweep in `folder`; a signal to one run ends all of them.

    No KeyboardInterrupt is raised: joblib would kill the other runs, which may be saving.
    """
    interruption = _following(folder)
    try:
        if name := sweep.stopped_by(folder):
            interruption.note(signal.Signals[name])
        return run()
    except KeyboardInterrupt:
        interruption.settle()
        sweep.stop(folder, interruption.name or "SIGINT")
        return ExitCode.PREEMPTED if interruption.preempts else ExitCode.INTERRUPTED
    finally:
        interruption.settle()


def _following(folder: Path) -> Interruption:
    global _interruption
    if _interruption is None:
        _interruption = follow_from_now_on()
        owner = owner_of(folder)
        arguments = folder, None if owner is None else owner.pid, _interruption
        threading.Thread(target=_follow, args=arguments, name="follow the sweep", daemon=True).start()
    return _interruption


def _follow(folder: Path, command: int | None, interruption: Interruption) -> None:
    """Interrupts this process's run when the sweep is interrupted, and ends the process if the command is killed."""
    free = 0
    while free < _LOOKS:
        time.sleep(_POLL_SECONDS)
        owner = owner_of(folder)
        free = 0 if owner is not None and owner.pid == command else free + 1
        if interruption.name is None and (name := sweep.stopped_by(folder)):
            os.kill(os.getpid(), signal.Signals[name])
    os.kill(os.getpid(), signal.SIGTERM)  # it may have time to save, and records how it ended
    time.sleep(_LAST_SECONDS)
    kill_tree_and_exit(EXIT_LOST)
