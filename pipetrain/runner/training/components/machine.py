"""The devices that processes compute on, and the memory that they keep."""

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator

import torch

from pipetrain.engine.errors import ConfigError


def device_of(device: str) -> str:
    """cpu or cuda for the setting `device`.

    Raises:
        ConfigError: there is no CUDA device.
    """
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
