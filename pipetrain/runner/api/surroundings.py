"""The program around a run: what it has set in this process is the same afterwards."""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from logging.handlers import WatchedFileHandler
from multiprocessing import spawn
from typing import Any
from unittest import mock

import torch

from pipetrain.engine.seeding import python_generators_kept
from pipetrain.runner.tracking.run_directory import RunDirectory

_one_at_a_time = threading.RLock()
"""Runs of several threads follow each other: each sets torch's generators and number of threads."""
_preparation_data = spawn.get_preparation_data


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Around runs: random numbers, threads, CUDA device and environment stay the program's own.

    Nor does a process run its main script: multiprocessing would have each worker import it, and so start the run
    again, unless the script checks `__name__`.
    """
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with (
        _one_at_a_time,
        python_generators_kept(),
        torch.random.fork_rng(cuda),
        torch.inference_mode(mode=False),
        mock.patch.object(spawn, "get_preparation_data", _without_main_script),
    ):
        threads, environment = torch.get_num_threads(), set(os.environ)
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            if device is not None:
                torch.cuda.set_device(device)
            for name in os.environ.keys() - environment:
                del os.environ[name]


def _without_main_script(name: str) -> dict[str, Any]:
    data = _preparation_data(name)
    return {key: value for key, value in data.items() if not key.startswith("init_main_")}


@contextlib.contextmanager
def logged(run: RunDirectory) -> Iterator[None]:
    """Around a run: its warnings also go to the log in its directory, as under the command."""
    handler = WatchedFileHandler(run.log, delay=True)
    handler.setFormatter(logging.Formatter("[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"))
    log = logging.getLogger("pipetrain")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
