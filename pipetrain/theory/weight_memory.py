"""Weights and optimizer state of a pipeline with stashed weights, in copies of all weights (PipeMare, table 1)."""

import math
from collections.abc import Callable, Sequence

Delay = Callable[[int, int, int], float]
"""τ of stage i of 1 to P, with P stages and N microbatches."""


def rounded_up(i: int, P: int, N: int) -> float:
    """⌈(2(P - i) + 1)/N⌉, as table 1 prints it."""
    return math.ceil((2 * (P - i) + 1) / N)


def unrounded(i: int, P: int, N: int) -> float:
    """(2(P - i) + 1)/N, the delay of table 1 on average over the microbatches."""
    return (2 * (P - i) + 1) / N


def one_step_more(i: int, P: int, N: int) -> float:
    """(2(P - i) + 2)/N, one microbatch more than table 1."""
    return (2 * (P - i) + 2) / N


def stashed_copies(weights: Sequence[int], microbatches: int, delay: Delay) -> float:
    """Σ |w_i| τ_i / Σ |w_i|: copies that PipeDream keeps.

    Args:
        weights: of each stage, from the first on.
        microbatches: N.
        delay: τ_i.
    """
    stages = len(weights)
    stashed = sum(count * delay(i, stages, microbatches) for i, count in enumerate(weights, 1))
    return stashed / sum(weights)


def memory_ratio(stashed: float, copies: int) -> float:
    """Memory with stashed weights in units of that without: the optimizer's other copies stay as they are.

    Args:
        stashed: copies of the weights that are kept in place of one.
        copies: of weights, gradient and optimizer state without stashing; 3 with momentum, 4 with Adam.
    """
    return (stashed + copies - 1) / copies
