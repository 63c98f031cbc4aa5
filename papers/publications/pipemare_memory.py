"""Memory of an asynchronous pipeline: activations and weights in closed form (PipeMare, table 1, app. A)."""

import math
from collections.abc import Callable, Sequence


def kept(stages: int) -> list[int]:
    """2(P - i) + 1 at stage i = 1 … P, without recomputation (app. A.2)."""
    return [2 * (stages - i) + 1 for i in range(1, stages + 1)]


def kept_with_recomputation(stages: int, segment: int) -> list[int]:
    """Activations kept at each stage if segments of `segment` stages recompute from their first (app. A.3, fig. 9).

    The first stage of a segment keeps its activations for every microbatch in flight, 2(P - i) + 1, and stage j of it
    those that are recomputed, until the backward comes: 2(S - j), and one at work in the last stage.
    """
    counts = []
    for stage, without in enumerate(kept(stages)):
        first = stage - stage % segment
        length = min(segment, stages - first)
        buffer = max(1, 2 * (length - (stage - first) - 1))
        counts.append(without if stage == first else buffer)
    return counts


def kept_by_gpipe_with_recomputation(stages: int, segment: int, microbatches: int) -> list[int]:
    """The same for GPipe, of which the first stage of a segment keeps a minibatch's activations (app. A.3, eq. 10)."""
    counts = kept_with_recomputation(stages, segment)
    return [count if stage % segment else microbatches for stage, count in enumerate(counts)]


def order_with_recomputation(stages: int) -> float:
    """P^{3/2} / P^2, the ratio of table 4's orders, which table 5 prints as the memory that is left."""
    return float(stages**-0.5)


Delay = Callable[[int, int, int], float]
"""τ of stage i of 1 to P, with P stages and N microbatches."""


def rounded_up(i: int, P: int, N: int) -> float:
    """⌈(2(P - i) + 1)/N⌉, as table 1 prints it."""
    return math.ceil((2 * (P - i) + 1) / N)


def unrounded(i: int, P: int, N: int) -> float:
    """(2(P - i) + 1)/N, the delay of table 1 on average over the microbatches."""
    return (2 * (P - i) + 1) / N


def delay_plus_one_microbatch(i: int, P: int, N: int) -> float:
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
