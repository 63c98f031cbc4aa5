"""Set-up of the fork server before the first fork. Only the fork server imports this module."""

import contextlib
import importlib
import os
import signal

from pipetrain.data.libraries.imports import gc_paused
from pipetrain.engine.processes import die_with_parent
from pipetrain.runner.launch import fork_server

_MODULES = (
    "pipetrain.runner.launch.launcher",
    "pipetrain.runner.launch.worker",
    "torch.fx.experimental.symbolic_shapes",  # which the first backward imports
)


def _preload() -> None:
    die_with_parent(signal.SIGKILL)
    # Ctrl-C at the terminal reaches this process too, which would answer with a traceback while it imports
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with gc_paused("torch"):  # nor will the workers copy the pages of what they share only to search them
        for name in (*_MODULES, *os.environ.pop(fork_server.MODULES, "").split()):
            with contextlib.suppress(Exception):  # the worker that needs it reports what is wrong
                importlib.import_module(name)
    signal.signal(signal.SIGINT, handler)
    # a signal to all processes of the run is for the launcher and the workers, which need this one until they end
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGHUP)}
    server = os.getpid()

    def restore() -> None:
        if os.getppid() == server:  # a program that calls pipetrain forks its own processes here, too
            for number, handler in before.items():
                signal.signal(number, handler)

    os.register_at_fork(after_in_child=restore)


_preload()
