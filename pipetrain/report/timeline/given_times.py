"""Times of stages and links as they are given on the command line."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipetrain.errors import ConfigError
from pipetrain.program.times import StageTimes


@dataclass(frozen=True)
class GivenTimes:
    """The times of the options: for each, one number for all stages or links, or one number each.

    Attributes:
        forward, backward, recomputation: of a microbatch; recomputation None: as the forward.
        update: of an optimizer step.
        link: latency of a message.
        message_bytes, link_bandwidth: what the transmission of a message follows from; None: it takes no time.
        seconds: whether the unit is the second.
    """

    forward: Sequence[float] = (1.0,)
    backward: Sequence[float] = (2.0,)
    recomputation: Sequence[float] | None = None
    update: Sequence[float] = (0.0,)
    link: Sequence[float] = (0.0,)
    message_bytes: Sequence[float] | None = None
    link_bandwidth: Sequence[float] | None = None
    seconds: bool = False

    def times(self, num_stages: int, num_microbatches: int) -> StageTimes:
        """The times of so many stages and the links between them.

        Raises:
            ConfigError: an option has too few or too many numbers, or one out of range.
        """
        forward = _for_each("--forward-time", self.forward, num_stages, "stages", above=True)
        recomputation = _for_each("--recompute-time", self.recomputation or forward, num_stages, "stages")
        backward = _for_each("--backward-time", self.backward, num_stages, "stages", above=True)
        update = _for_each("--update-time", self.update, num_stages, "stages")
        latency = _for_each("--link-time", self.link, num_stages - 1, "links")
        transmission = self._transmission(num_stages - 1)
        return StageTimes(forward, recomputation, backward, update, num_microbatches, latency, transmission)

    def _transmission(self, links: int) -> list[float]:
        if self.message_bytes is None and self.link_bandwidth is None:
            return [0.0] * links
        if self.message_bytes is None or self.link_bandwidth is None:
            raise ConfigError("--message-bytes and --link-bandwidth go together; --link-time alone is the time itself")
        sizes = _for_each("--message-bytes", self.message_bytes, links, "links")
        speeds = _for_each("--link-bandwidth", self.link_bandwidth, links, "links", above=True)
        return [size / speed for size, speed in zip(sizes, speeds, strict=True)]


def _for_each(option: str, values: Sequence[float], count: int, of: str, *, above: bool = False) -> list[float]:
    shown = f"{option} {','.join(f'{value:g}' for value in values)}"
    if any(not (value > 0 if above else value >= 0) or value == float("inf") for value in values):
        raise ConfigError(f"{shown}: must be {'above 0' if above else 'at least 0'}, and finite")
    if len(values) not in (1, count):
        raise ConfigError(f"{shown}: {len(values)} numbers for {count} {of}; give one for each, or one for all")
    return list(values) * count if len(values) == 1 else list(values)
