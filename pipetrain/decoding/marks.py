"""The token ids that no text has."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Marks:
    """The ids of a vocabulary that stand for no text.

    Attributes:
        beginning: what a decoder reads first.
        end: after the last token.
        padding: of shorter sequences in a minibatch.
    """

    beginning: int
    end: int
    padding: int = 0
