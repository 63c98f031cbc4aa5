"""What a recorded graph takes for granted of its inputs, checked wherever it runs."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pipetrain.errors import RunError
from pipetrain.models.graph.sizes import Operation


@dataclass(frozen=True)
class SameWay:
    """A comparison of sizes that decided which way the forward took.

    Attributes:
        operation: of Python's operators.
        outcome: in the recording.
        line: of the user's code.
    """

    operation: Operation
    outcome: bool
    line: str

    def __call__(self, left: Any, right: Any) -> None:
        """Compares the sizes of this minibatch.

        Raises:
            RunError: the outcome is another one.
        """
        if self.operation(left, right) is not self.outcome:
            raise RunError(
                f"model: for a size of {int(left)} the forward takes another way than in the recording that it was cut "
                f"by ({self.line}); use data of one size, or return an nn.Sequential"
            )

    __name__ = "same_way"


@dataclass(frozen=True)
class SameShape:
    """The shape of an input of the model; None for what may differ between minibatches."""

    shape: tuple[int | None, ...]

    def __call__(self, tensor: Tensor) -> None:
        """Holds a tensor against the shape.

        Raises:
            RunError: it has another.
        """
        sizes = tensor.shape
        if len(sizes) != len(self.shape) or any(a not in (None, b) for a, b in zip(self.shape, sizes, strict=True)):
            wanted = ", ".join("any" if size is None else str(size) for size in self.shape)
            raise RunError(
                f"model: an input of shape {tuple(sizes)}, where the forward was recorded for ({wanted}); use data of "
                "one size, or return an nn.Sequential"
            )

    __name__ = "same_shape"
