"""What formats of messages change: the bytes that pass a link, and the time of encoding and decoding them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class DirectionCosts:
    """Costs of the messages of one direction, by link.

    Attributes:
        share: of the bytes of plain messages that is sent.
        encode_s, decode_s: seconds that both ends take for a microbatch's message.
    """

    share: Sequence[float]
    encode_s: Sequence[float]
    decode_s: Sequence[float]

    @classmethod
    def plain(cls, links: int) -> "DirectionCosts":
        """Plain messages: no time, all bytes."""
        return cls([1.0] * links, [0.0] * links, [0.0] * links)


@dataclass(frozen=True)
class MessageCosts:
    """Costs of activations, which go forward, and of gradients, which go back."""

    forward: DirectionCosts
    backward: DirectionCosts

    @property
    def forward_s(self) -> list[float]:
        """Seconds of a forward of each stage in which it decodes what it takes, and encodes what it sends."""
        return _of_stages(self.forward.decode_s, self.forward.encode_s)

    @property
    def backward_s(self) -> list[float]:
        """The same of a backward."""
        return _of_stages(self.backward.encode_s, self.backward.decode_s)

    @property
    def mean_share(self) -> list[float]:
        """Share of the bytes of plain messages of both directions, by link."""
        return [(one + other) / 2 for one, other in zip(self.forward.share, self.backward.share, strict=True)]

    @property
    def largest_share(self) -> list[float]:
        """The same of the direction that sends more."""
        return list(map(max, self.forward.share, self.backward.share))


def _of_stages(before: Sequence[float], behind: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip([0.0, *before], [*behind, 0.0], strict=True)]
