"""Sizes of tensors that remember where they come from, and checks of what a graph assumes of them."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

from torch import Tensor
from typing_extensions import override

from pipetrain.errors import RunError

Operation = Callable[..., Any]

_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "pow")
_COMPARISONS = ("lt", "le", "eq", "ne", "gt", "ge")


class Listener(Protocol):
    """Receives the comparisons of sizes."""

    def on_comparison(self, operation: Operation, left: Any, right: Any, *, outcome: bool) -> None:
        """Called with each comparison and its outcome."""


class Size(int):
    """An int that knows how it was computed from tensors.

    Attributes:
        operation: torch.Tensor.size, or arithmetic on sizes.
        operands: (tensor, dimension), or sizes and other ints.
        listener: receives comparisons.
    """

    operation: Operation
    operands: tuple[Any, ...]
    listener: Listener

    @classmethod
    def of(cls, value: int, operation: Operation, operands: tuple[Any, ...], listener: Listener) -> Self:
        """The size `value`, which `operation` makes of `operands`."""
        size = cls(value)
        size.operation, size.operands, size.listener = operation, operands, listener
        return size

    @override
    def __bool__(self) -> bool:
        return self != 0

    @override
    def __ceil__(self) -> Self:
        return self

    @override
    def __floor__(self) -> Self:
        return self

    __hash__ = int.__hash__


def _computing(operation: Operation, *, swapped: bool) -> Operation:
    def compute(size: Size, other: Any) -> Any:
        operands = (other, size) if swapped else (size, other)
        if not isinstance(other, int | float):
            return NotImplemented
        value = operation(*(int(each) if isinstance(each, int) else each for each in operands))
        return Size.of(value, operation, operands, size.listener) if isinstance(value, int) else value

    return compute


def _comparing(operation: Operation) -> Operation:
    def compare(size: Size, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        outcome = operation(int(size), int(other) if isinstance(other, int) else other)
        size.listener.on_comparison(operation, size, other, outcome=outcome)
        return outcome

    return compare


for _name in _ARITHMETIC:
    setattr(Size, f"__{_name}__", _computing(getattr(operator, _name), swapped=False))
    setattr(Size, f"__r{_name}__", _computing(getattr(operator, _name), swapped=True))
for _name in _COMPARISONS:
    setattr(Size, f"__{_name}__", _comparing(getattr(operator, _name)))


@dataclass(frozen=True)
class SameBranch:
    """A comparison of sizes that decided on a branch of the forward.

    Attributes:
        operation: of Python's operators.
        outcome: in the recording.
        line: of the user's code.
    """

    operation: Operation
    outcome: bool
    line: str

    def __call__(self, left: Any, right: Any) -> None:
        """Checks the comparison for this minibatch.

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
        """Checks the shape of a tensor.

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
