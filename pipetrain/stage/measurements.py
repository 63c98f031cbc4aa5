"""What was seen while a stage ran, for the measured part of its report, and what may not be seen."""

from dataclasses import dataclass, field

from pipetrain.schedules.readings import staleness


class InvariantError(RuntimeError):
    """What ran is not what the method and schedule promise: an error of pipetrain's, never of the user's."""


@dataclass
class Audit:
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
