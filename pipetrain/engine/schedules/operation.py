"""An operation of a stage: a value that prints, parses back, and names log lines, ranges and trace slices."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from typing_extensions import override

_PATTERN = re.compile(r"(?P<kind>[FRBW])(?P<minibatch>\d+)\.(?P<microbatch>\d+)|(?P<whole>[RBU])(?P<t>\d+)")


class Kind(StrEnum):
    """Kind of an operation: of a microbatch, or the update of a minibatch.

    Where a schedule splits the backward, B computes the gradients of inputs, and W those of weights.
    """

    FORWARD = "F"
    RECOMPUTATION = "R"
    BACKWARD = "B"
    WEIGHT_GRADIENT = "W"
    UPDATE = "U"

    @property
    def word(self) -> str:
        """Its name in messages and legends, such as `weight gradient`."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry of a stage's list; `F3.0` is the forward of microbatch 0 of minibatch 3, `U3` its optimizer step.

    `minibatch` counts from the last drain, as the formulas of every schedule do. `microbatch` is None if the
    operation is of the whole minibatch: `B3` is one backward of all its microbatches.
    """

    kind: Kind
    minibatch: int
    microbatch: int | None = 0

    @override
    def __str__(self) -> str:
        return f"{self.kind}{self.minibatch}" + ("" if self.microbatch is None else f".{self.microbatch}")

    @classmethod
    def parse(cls, text: str) -> "Operation":
        """The operation that prints as `text`.

        Raises:
            ValueError: `text` is not of the form F3.0, R3.0, B3.0, W3.0, R3, B3 or U3.
        """
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no operation; operations look like F3.0, R3.0, B3.0, W3.0, B3 or U3")
        if match["whole"] is not None:
            return cls(Kind(match["whole"]), int(match["t"]), None)
        return cls(Kind(match["kind"]), int(match["minibatch"]), int(match["microbatch"]))

    def covers(self, num_microbatches: int) -> range:
        """The microbatches, of N in a minibatch, that it is an operation of."""
        return range(num_microbatches) if self.microbatch is None else range(self.microbatch, self.microbatch + 1)

    def moved(self, by: int) -> "Operation":
        """The operation with its minibatch counted from elsewhere, such as from the start of the run."""
        return Operation(self.kind, self.minibatch + by, self.microbatch)

    def like(self, kind: Kind) -> "Operation":
        """The operation of another kind on the same microbatches."""
        return Operation(kind, self.minibatch, self.microbatch)


_shared = lru_cache(maxsize=1 << 16)
"""Lists of many stages hold the same operations: one object each keeps them small."""


@_shared
def forward(minibatch: int, microbatch: int = 0) -> Operation:
    """F(t, j), the forward of a microbatch."""
    return Operation(Kind.FORWARD, minibatch, microbatch)


@_shared
def backward(minibatch: int, microbatch: int | None = 0) -> Operation:
    """B(t, j), the backward of a microbatch; without j the one backward of all of minibatch t."""
    return Operation(Kind.BACKWARD, minibatch, microbatch)


@_shared
def weight_gradient(minibatch: int, microbatch: int = 0) -> Operation:
    """W(t, j), the gradients of weights of a microbatch, after its B."""
    return Operation(Kind.WEIGHT_GRADIENT, minibatch, microbatch)


@_shared
def update(minibatch: int) -> Operation:
    """U(t), the update with the gradient of a minibatch."""
    return Operation(Kind.UPDATE, minibatch, None)
