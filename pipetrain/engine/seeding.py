"""Seeds that depend on what is being computed, never on the process that computes it."""

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from types import BuiltinMethodType, MethodType
from typing import Any

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def key(*numbers: int) -> int:
    """A seed in [0, 2**63) for the place in a run that `numbers` name, such as (seed, epoch, sample).

    Each number is absorbed by one step of splitmix64 (Steele, Lea, Flood 2014: the golden-ratio increment and the
    finalizer known as Mix13), in order, so that key(1, 2), key(2, 1) and key(1, 2, 0) differ. Numbers count modulo
    2**64, negative ones included. The values are part of a run's reproducibility: integer arithmetic alone makes them,
    so they are the same on every platform and must stay the same in every version.

    torch's generator on the CPU keeps the lowest 32 bits of a seed; they are well mixed, too.
    """
    return reduce(_absorbed, numbers, 0) >> 1


def keys_after(*numbers: int) -> Callable[[int], int]:
    """A function of one more number: `keys_after(a, b)(c)` is `key(a, b, c)`, at a third of the cost."""
    state = reduce(_absorbed, numbers, 0)
    return lambda number: _absorbed(state, number) >> 1


def _absorbed(state: int, number: int) -> int:
    state = (state + _GAMMA + number) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


@contextmanager
def python_generators_kept() -> Iterator[list[bool]]:
    """Afterwards Python's and numpy's default generators are where they were.

    The list that it gives then says whether any number was drawn.
    """
    numpy: Any = sys.modules.get("numpy")  # what has not imported it draws nothing from it
    before, numpy_before = random.getstate(), numpy and numpy.random.get_state()
    drawn: list[bool] = []
    try:
        yield drawn
    finally:
        drawn.append(random.getstate() != before or bool(numpy and _differ(numpy_before, numpy.random.get_state())))
        if drawn[0]:
            random.setstate(before)
            if numpy:
                numpy.random.set_state(numpy_before)


def seed_python(seed: int) -> None:
    """Seeds Python's and numpy's default generators."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def python_draws(seed: int) -> Iterator[list[bool]]:
    """Python's and numpy's default generators draw from `seed` inside; their former state is restored after it.

    Afterwards the list that it gives says whether any number was drawn.
    """
    with python_generators_kept():
        seed_python(seed)
        with python_generators_kept() as drawn:
            yield drawn


def may_draw(files: Iterable[str]) -> bool:
    """True if one of these imported modules has Python's or numpy's generator, or a function of theirs, as a global."""
    numpy: Any = sys.modules.get("numpy")
    sources = [random, *((numpy, numpy.random) if numpy else ())]
    kinds = (random.Random, *((numpy.random.RandomState,) if numpy else ()))
    values = [value for file in files if file in sys.modules for value in list(vars(sys.modules[file]).values())]
    return any(
        isinstance(value.__self__, kinds)
        if isinstance(value, BuiltinMethodType | MethodType)
        else any(value is source for source in sources)
        for value in values
    )


def _differ(one: Any, other: Any) -> bool:
    """True if two states of numpy's generator differ: in the words of Mersenne Twister, or the place in them."""
    return bool(one[2:] != other[2:] or (one[1] != other[1]).any())
