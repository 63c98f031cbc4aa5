"""Peak memory of a stage: the device allocator's, or the process's resident set on the CPU."""

import resource
import sys

import torch


def peak_memory_bytes(device: torch.device) -> int:
    """Bytes; on the CPU those of the whole process, since nothing tells its stages apart."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
