"""Staleness and activation bytes, measured while a stage runs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from pipetrain.program.weight_reads import staleness


class ActivationBytes(NamedTuple):
    """What a forward keeps for its backward, weights aside.

    Attributes:
        made: of its own making.
        inputs: of its inputs.
    """

    made: int = 0
    inputs: int = 0

    def beside(self, stored: Iterable[Tensor]) -> int:
        """With the inputs stored for a recomputation, of which `inputs` are a part."""
        return self.made + max(self.inputs, sum(tensor.nbytes for tensor in stored))


@dataclass
class Measurements:
    """What was seen while the stage ran.

    Attributes:
        forward, backward: minibatch under way -> the versions that its microbatches have read.
        forward_staleness, backward_staleness: the distinct values in the steady state.
        activation_bytes_peak: the most held at one time.
    """

    forward: dict[int, list[int]] = field(default_factory=dict)
    backward: dict[int, list[int]] = field(default_factory=dict)
    forward_staleness: set[int] = field(default_factory=set)
    backward_staleness: set[int] = field(default_factory=set)
    activation_bytes_peak: int = 0

    def settle(self, minibatch: int, newest: int, *, steady: bool) -> None:
        """At an update, which `newest` others preceded, turns versions read into staleness.

        The update is that of `minibatch`, and of those before it in the same round of replicas.
        """
        for read, found in ((self.forward, self.forward_staleness), (self.backward, self.backward_staleness)):
            for t in [t for t in read if t <= minibatch]:
                versions = read.pop(t)
                if steady:
                    found.update(staleness(version, newest) for version in versions)

    def hold(self, activation_bytes: int) -> None:
        """Takes a reading of the activations that the stage holds."""
        self.activation_bytes_peak = max(self.activation_bytes_peak, activation_bytes)
