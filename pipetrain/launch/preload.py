"""What the fork server does before the first fork. Only the fork server imports this module."""

import importlib
import signal

from pipetrain.imports import uncollected
from pipetrain.launch.lifeline import die_with_parent


def _preload() -> None:
    die_with_parent(signal.SIGKILL)
    # Ctrl-C at the terminal reaches this process too, which would answer with a traceback while it imports
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with uncollected():  # nor will the workers copy the pages of what they share only to search them
        importlib.import_module("pipetrain.launch.worker")
    signal.signal(signal.SIGINT, handler)
    # a signal to all processes of the run is for the launcher and the workers, which need this one until they end
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


_preload()
