"""Activations that an asynchronous pipeline keeps, in those of one microbatch at one operator (PipeMare, app. A)."""


def kept(stages: int) -> list[int]:
    """2(P - i) + 1 at stage i = 1 … P, without recomputation (app. A.2)."""
    return [2 * (stages - i) + 1 for i in range(1, stages + 1)]


def kept_with_recomputation(stages: int, segment: int) -> list[int]:
    """Those at each stage where segments of so many stages recompute from their first one (app. A.3, fig. 9).

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
