"""Sizes of tensors that remember where they come from, and checks of what a graph assumes of them."""

import operator
from collections.abc import Callable
from typing import Any, Self

from torch import Tensor
from typing_extensions import override

from pipetrain.engine.errors import RunError

Operation = Callable[..., Any]
OnComparison = Callable[[str, Any, Any, bool], None]

_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "pow")
_COMPARISONS = ("lt", "le", "eq", "ne", "gt", "ge")


class Size(int):
    """An int that knows how it was computed from tensors.

    Attributes:
        operation: torch.Tensor.size, or arithmetic on sizes.
        operands: (tensor, dimension), or sizes and other ints.
        on_comparison: called with the name of the operation, both operands and the outcome of each comparison.
    """

    operation: Operation
    operands: tuple[Any, ...]
    on_comparison: OnComparison

    @classmethod
    def of(cls, value: int, operation: Operation, operands: tuple[Any, ...], on_comparison: OnComparison) -> Self:
        """The size `value`, the result of `operation` for `operands`."""
        size = cls(value)
        size.operation, size.operands, size.on_comparison = operation, operands, on_comparison
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

    __hash__ = None  # type: ignore[assignment]  # a cache would pass the size of one recording to the next


def _method(name: str, *, swapped: bool = False) -> Operation:
    operation = getattr(operator, name)

    def compute(size: Size, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        operands = (other, size) if swapped else (size, other)
        value = operation(*(int(each) if isinstance(each, int) else each for each in operands))
        if isinstance(value, bool):
            size.on_comparison(name, size, other, value)
        elif isinstance(value, int):
            return Size.of(value, operation, operands, size.on_comparison)
        return value

    return compute


for _name in _ARITHMETIC:
    setattr(Size, f"__{_name}__", _method(_name))
    setattr(Size, f"__r{_name}__", _method(_name, swapped=True))
for _name in _COMPARISONS:
    setattr(Size, f"__{_name}__", _method(_name))


def check_branch(left: Any, right: Any, operation: str, outcome: bool, line: str) -> None:  # noqa: FBT001
    """Checks that a comparison of sizes has the `outcome` in this minibatch that it had in the recording.

    It decided on a branch of the forward, at `line` of the user's code; `operation` is its name in `operator`.

    Raises:
        RunError: the outcome differs for this minibatch.
    """
    if getattr(operator, operation)(left, right) is not outcome:
        raise RunError(
            f"model: for a size of {int(left)} the forward takes another branch than the recorded one ({line}); use "
            "data of one size, or return an nn.Sequential"
        )


def check_shape(tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    """Checks the shape of an input of the model; None stands for any size.

    Raises:
        RunError: it differs.
    """
    sizes = tensor.shape
    if len(sizes) != len(shape) or any(a not in (None, b) for a, b in zip(shape, sizes, strict=True)):
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise RunError(
            f"model: an input of shape {tuple(sizes)}, but the forward was recorded for ({expected}); use data of one "
            "size, or return an nn.Sequential"
        )
