"""Lists of numbers in which whole numbers in equal steps are written as their first, their step and their count."""

from collections.abc import Sequence
from typing import Any

_LEAST = 4
"""As many numbers in equal steps as are written so."""


def in_series(values: Sequence[Any]) -> list[Any]:
    """The values with (first, step, count) in place of whole numbers in equal steps."""
    found, begin = list[Any](), 0
    while begin < len(values):
        end = _end_of_steps(values, begin)
        if end - begin >= _LEAST:
            found.append((values[begin], values[begin + 1] - values[begin], end - begin))
            begin = end
        else:
            found.append(values[begin])
            begin += 1
    return found


def _end_of_steps(values: Sequence[Any], begin: int) -> int:
    """Behind the last of the whole numbers from `begin` on that are in equal steps."""
    end = begin
    while end < len(values) and isinstance(values[end], int):
        if end > begin + 1 and values[end] - values[end - 1] != values[begin + 1] - values[begin]:
            break
        end += 1
    return end


def listed(values: Sequence[Any]) -> list[Any]:
    """The values that `in_series` wrote, as they are read from JSON."""
    found = list[Any]()
    for value in values:
        if isinstance(value, list):
            first, step, count = value
            found += [first + step * index for index in range(count)]
        else:
            found.append(value)
    return found
