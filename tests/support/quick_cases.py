"""Methods, stages and microbatches as parameters of tests; apart from `methods`, as workers need no pytest."""

from typing import Any

import pytest
from support.methods import fitting_cases


def quick_cases() -> list[Any]:
    """`fitting_cases` as parameters; three stages and two microbatches are left to the slow tests."""
    slow = {each: each[1] == 3 or each[2] == 2 for each in fitting_cases()}
    return [pytest.param(*each, marks=[pytest.mark.slow] if late else []) for each, late in slow.items()]
