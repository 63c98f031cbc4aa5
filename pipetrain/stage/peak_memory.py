"""The memory that a process holds: the most since a run began in it, and what is in use on its device."""

import contextlib
import re
import resource
import sys
from pathlib import Path
from typing import Any

import torch

_PROCESS = Path("/proc/self")
_FORGET_PEAK = "5"
"""What Linux's `clear_refs` takes for it."""


def forget_peak_memory(device: torch.device) -> None:
    """Has the peak begin anew, as the runs of a sweep may be in one process; outside Linux the CPU's stays."""
    if device.type == "cuda":
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        (_PROCESS / "clear_refs").write_text(_FORGET_PEAK)


def memory_report(device: torch.device) -> dict[str, Any]:
    """What is reported of a stage's memory: its tensors at most; on CUDA also what lies about them.

    The allocator keeps memory for later tensors, and beside it a process has its context and the buffers of NCCL.
    """
    report = {"peak_memory_bytes": peak_memory_bytes(device)}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        report["peak_reserved_memory_bytes"] = int(torch.cuda.max_memory_reserved(device))
        report["device_memory_bytes"] = int(total - free)
    return report


def peak_memory_bytes(device: torch.device) -> int:
    """Bytes of the device's allocator; on the CPU those of the whole process, since nothing tells its stages apart."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError):
        if found := re.search(r"^VmHWM:\s*(\d+) kB$", (_PROCESS / "status").read_text(), re.MULTILINE):
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
