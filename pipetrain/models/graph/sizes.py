"""Sizes of tensors that remember where they come from, so that a graph computes them anew for every minibatch."""

import operator
from collections.abc import Callable
from typing import Any, Protocol, Self

from typing_extensions import override

Operation = Callable[..., Any]

_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "pow")
_COMPARISONS = ("lt", "le", "eq", "ne", "gt", "ge")


class Listener(Protocol):
    """Who is told that the forward took its way by a comparison of sizes."""

    def compared(self, operation: Operation, left: Any, right: Any, *, outcome: bool) -> None:
        """Takes note of the comparison and its outcome."""


class Size(int):
    """An int of which it is known how it follows from tensors.

    Attributes:
        operation: torch.Tensor.size, or arithmetic on sizes.
        operands: (tensor, dimension), or sizes and other ints.
        listener: told of comparisons.
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
        size.listener.compared(operation, size, other, outcome=outcome)
        return outcome

    return compare


for _name in _ARITHMETIC:
    setattr(Size, f"__{_name}__", _computing(getattr(operator, _name), swapped=False))
    setattr(Size, f"__r{_name}__", _computing(getattr(operator, _name), swapped=True))
for _name in _COMPARISONS:
    setattr(Size, f"__{_name}__", _comparing(getattr(operator, _name)))
