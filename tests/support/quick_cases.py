"""Methods, stages and microbatches as parameters of tests; apart from `methods`, as workers need no pytest."""

from collections.abc import Iterable
from typing import Any

import pytest
from support.methods import fitting_cases


def quick_cases() -> list[Any]:
    """`fitting_cases` as parameters, most of them left to the slow tests."""
    quick = ((1, 4), (4, 1), (3, 4))
    return [pytest.param(*each, marks=[] if each[1:] in quick else [pytest.mark.slow]) for each in fitting_cases()]


def every(k: int, cases: Iterable[Any]) -> list[Any]:
    """The cases, tuples or single values, of which only every k-th is left to the quick tests."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.slow] if i % k else [])
        for i, case in enumerate(cases)
    ]
