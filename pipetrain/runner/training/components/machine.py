"""What a run needs of the machine: devices, threads, the way of messages, and the memory that processes keep."""

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator

import torch

from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.messages.transport import DeviceIdentity, transport_between
from pipetrain.engine.processes import usable_cores
from pipetrain.runner.config.schema import ExecutorConfig

_THREADS_PER_CORE = 16
"""Upper limit: more only make a run slower. It is not 1, so that a run on a larger machine can be repeated here."""


def device_of(device: str) -> str:
    """cpu or cuda for the setting `device`; raises a ConfigError if there is no CUDA device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "device=cuda: torch finds no CUDA device here; device=cpu works, `pipetrain doctor` says more"
        )
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def device_at(kind: str, local_rank: int) -> torch.device:
    """Device of the process of this rank on its machine; processes share the devices in turn."""
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, local_rank % torch.get_device_module(kind).device_count())


def check_threads(threads: int | None, workers: int) -> None:
    """Raises a ConfigError if this machine should not start so many threads and reading processes."""
    most = _THREADS_PER_CORE * usable_cores()
    for name, number in (("threads", threads), ("dataset.workers", workers)):
        if number is not None and number > most:
            raise ConfigError(f"{name}={number}: must be at most {most} here, {_THREADS_PER_CORE} for each core")


def check_devices(device: str, processes: int) -> None:
    """Raises a ConfigError if a library that moves the memory of devices lacks one for a process.

    Which devices the processes of an outer launcher have is known when they meet: each may see its own alone.
    """
    if device == "cuda" and not outer_launcher.is_present() and torch.cuda.device_count() < processes:
        raise ConfigError(
            f"device=cuda: torch.distributed.pipelining needs a CUDA device for each of {processes} processes, and "
            f"there are {torch.cuda.device_count()}; device=cpu works"
        )


def transport_notes(executor: ExecutorConfig, device: str, processes: int) -> list[str]:
    """A line on how stages on GPUs exchange messages, as far as that is known before their processes meet."""
    if device == "cpu" or executor.simulated or processes == 1:
        return []
    if outer_launcher.is_present():
        return ["messages: over NCCL if each process has its own GPU, else over Gloo; summary.json has the transport"]
    devices = [device_at(device, process) for process in range(processes)]
    transport = transport_between(devices[0], [DeviceIdentity.of(each) for each in devices])
    way = "from GPU to GPU over NCCL" if transport.direct else "through host memory over Gloo"
    return [f"messages: {way}, as {transport.reason}"]


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h


def keep_freed_memory() -> None:
    """Lets glibc keep what this process frees, unless the user has set its thresholds.

    A step frees its activations and gradients, and takes as many again. By default glibc gives the larger ones back to
    the system each time, and those above 32 MB whatever its threshold is. The page faults of taking them again cost
    about 2 % of a step of ResNet-56, and three quarters of the time that the gradient of a large linear layer takes.
    Without glibc nothing happens.
    """
    _set_thresholds(trim=2**31 - 1, mmaps=0)


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """The same for a while, as in a stage's process; what is free afterwards goes back to the system and the GPUs."""
    keep_freed_memory()
    try:
        yield
    finally:
        gc.collect()  # a pipeline's parts refer to each other
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        _set_thresholds(trim=2**17, mmaps=2**16)  # glibc's defaults


def _set_thresholds(*, trim: int, mmaps: int) -> None:
    """Sets glibc's thresholds, and gives free memory back to the system."""
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_TRIM_THRESHOLD, trim)
        libc.mallopt(_M_MMAP_MAX, mmaps)
    give_back_free_memory()


def give_back_free_memory() -> None:
    """Returns freed memory that glibc keeps to the system. Does not change glibc's thresholds."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
