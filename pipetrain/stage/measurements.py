"""What was seen while a stage ran, for the measured part of its report, and what may not be seen."""

import resource
import sys
from dataclasses import dataclass, field

import torch

from pipetrain.program.weight_reads import staleness


class InvariantError(RuntimeError):
    """What ran is not what the method and schedule promise: an error of pipetrain's, never of the user's."""


@dataclass
class Measurements:
    """What was seen while the stage ran: staleness of each microbatch, activation bytes."""

    forward: dict[int, list[int]] = field(default_factory=dict)
    backward: dict[int, list[int]] = field(default_factory=dict)
    forward_staleness: set[int] = field(default_factory=set)
    backward_staleness: set[int] = field(default_factory=set)
    activation_bytes_peak: int = 0

    def settle(self, minibatch: int, newest: int, steady: bool) -> None:
        """At the update of `minibatch`, which `newest` other updates preceded, turns versions read into staleness."""
        forward, backward = self.forward.pop(minibatch, []), self.backward.pop(minibatch, [])
        if steady:
            self.forward_staleness.update(staleness(version, newest) for version in forward)
            self.backward_staleness.update(staleness(version, newest) for version in backward)


def peak_memory_bytes(device: torch.device) -> int:
    """Bytes of the device's allocator; on the CPU those of the whole process, since nothing tells its stages apart."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
