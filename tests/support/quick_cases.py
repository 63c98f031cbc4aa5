"""Which cases of a table are quick tests and which slow ones; apart from `methods`, as workers need no pytest."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import pytest
from support.methods import fitting_cases


def quick_cases() -> list[Any]:
    """`fitting_cases` as parameters, most of them left to the slow tests."""
    return slow_unless(lambda _rule, D, N: (D, N) in ((4, 1), (3, 4)), fitting_cases())


def slow_unless(quick: Callable[..., bool], cases: Iterable[Any]) -> list[Any]:
    """The cases, tuples or single values; those for which `quick` is not true are slow tests."""
    tuples = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=[] if quick(*case) else [pytest.mark.slow]) for case in tuples]


def every(k: int, cases: Iterable[Any]) -> list[Any]:
    """The cases, tuples or single values; each k-th, from the first, is a quick test, all others are slow ones."""
    counter = count()
    return slow_unless(lambda *_case: next(counter) % k == 0, cases)


GRID = slow_unless(
    lambda D, N: (D, N) in ((1, 1), (4, 1), (5, 3)),
    [(D, N) for D in range(1, 7) for N in range(1, 5) if (D, N) == (4, 1) or (D + N) % 2 == 0],
)
"""(D, N) of pipelines that are compared with the reference."""
FEW = slow_unless(
    lambda D, N: (D, N) in ((1, 1), (3, 1), (6, 2)), [(1, 1), (3, 1), (6, 2), (2, 2), (4, 4), (5, 1), (5, 3)]
)
"""The same, fewer."""
