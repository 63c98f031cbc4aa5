"""Processes forked from one that has imported torch, with an emulated GPU each if a test wants it."""

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

FORK_SERVER: list[Callable[[], None]] = []
"""Starts the fork server as a run does, once `worker_pool` is imported; else multiprocessing starts it."""
_EMULATION = ("PIPETRAIN_EMULAT", "PIPETRAIN_MUTANT", "STRICT_NCCL_")


def forked(function: Callable[..., None], *arguments: Any, count: int) -> None:
    """Calls `function(rank, *arguments)` in `count` processes, whose parent has imported torch once for all tests."""
    for start in FORK_SERVER or [_preload_torch]:
        start()
    if os.environ.get("PIPETRAIN_EMULATED_GPUS") == "1":
        # workers have the environment that the fork server had when it started
        emulated = {name: value for name, value in os.environ.items() if name.startswith(_EMULATION)}
        function, arguments = _on_emulated_gpu, (emulated, function, *arguments)
    mp.start_processes(function, arguments, count, start_method="forkserver")


def _preload_torch() -> None:
    mp.get_context("forkserver").set_forkserver_preload(["torch"])


def _on_emulated_gpu(rank: int, environment: dict[str, str], function: Callable[..., None], *arguments: Any) -> None:
    """Calls `function` where there is a GPU of `support.fake_gpu`, and NCCL between processes.

    PIPETRAIN_MUTANT=module:function names what to call before: it breaks what a test is to find broken.
    """
    for name in [name for name in os.environ if name.startswith(_EMULATION)]:  # of the test that started the server
        del os.environ[name]
    os.environ.update(environment, RANK=str(rank))
    from support import fake_gpu, strict_nccl  # only here, as nobody else needs them

    strict_nccl.install()
    if mutant := environment.get("PIPETRAIN_MUTANT"):
        module, _, name = mutant.partition(":")
        getattr(importlib.import_module(module), name)()
    try:
        function(rank, *arguments)
    finally:
        fake_gpu.dump()
