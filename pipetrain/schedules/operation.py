"""An operation of a stage: a value that prints, parses back, and names log lines, ranges and trace slices."""

import re
from dataclasses import dataclass
from enum import StrEnum

_PATTERN = re.compile(r"(?P<kind>[FB])(?P<minibatch>\d+)\.(?P<microbatch>\d+)|U(?P<update>\d+)")


class Kind(StrEnum):
    """What an operation does: the forward or backward of a microbatch, or the optimizer step of a minibatch."""

    FORWARD = "F"
    BACKWARD = "B"
    UPDATE = "U"


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry of a stage's list; `F3.0` is the forward of microbatch 0 of minibatch 3, `U3` its optimizer step.

    `minibatch` counts from the last drain, as the formulas of every schedule do.
    """

    kind: Kind
    minibatch: int
    microbatch: int = 0

    def __str__(self) -> str:
        if self.kind is Kind.UPDATE:
            return f"U{self.minibatch}"
        return f"{self.kind}{self.minibatch}.{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> "Operation":
        """The operation that prints as `text`.

        Raises:
            ValueError: `text` is not of the form F3.0, B3.0 or U3.
        """
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no operation; operations look like F3.0, B3.0 or U3")
        if match["update"] is not None:
            return update(int(match["update"]))
        return cls(Kind(match["kind"]), int(match["minibatch"]), int(match["microbatch"]))


def forward(minibatch: int, microbatch: int = 0) -> Operation:
    """F(t, j)."""
    return Operation(Kind.FORWARD, minibatch, microbatch)


def backward(minibatch: int, microbatch: int = 0) -> Operation:
    """B(t, j)."""
    return Operation(Kind.BACKWARD, minibatch, microbatch)


def update(minibatch: int) -> Operation:
    """U(t)."""
    return Operation(Kind.UPDATE, minibatch)
