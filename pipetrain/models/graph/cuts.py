"""Where graphs are cut into layers: between two uses of weights, wherever few bytes cross."""

import itertools
from collections.abc import Sequence

from pipetrain.models.graph.flow import Flow

_COSTLY = 2
"""A cut that more bytes cross than so many times those of the cheapest cuts before and behind is left out.

Inside a residual block its input crosses beside what is computed of it, which is still a place to cut."""


def cuts_of(training: Flow, evaluation: Flow) -> list[tuple[int, int]]:
    """The positions at which the two graphs are cut, with the same weights on either side."""
    other = _Aligned(training, evaluation)
    cuts = [(cut, other.cut(cut)) for cut in _cheap(training, _candidates(training))]
    found: list[tuple[int, int]] = []
    for cut, aligned in cuts:
        if aligned is not None and (not found or aligned > found[-1][1]):
            found.append((cut, aligned))
    return found


def _candidates(flow: Flow) -> list[int]:
    """The cheapest place between each two nodes with weights, the last of several."""
    places = [_cheapest(flow, a + 1, b) for a, b in itertools.pairwise(flow.anchors)]
    return [place for place in places if place is not None]


def _cheapest(flow: Flow, first: int, last: int) -> int | None:
    allowed = [position for position in range(last, first - 1, -1) if flow.may_be_cut[position]]
    return min(allowed, key=flow.bytes_at.__getitem__, default=None)


def _cheap(flow: Flow, cuts: Sequence[int]) -> list[int]:
    costs = [flow.bytes_at[cut] for cut in cuts]
    before = itertools.accumulate(costs, min)
    leaving = sum(node.meta["bytes"] for node in flow.outputs)
    behind = reversed(list(itertools.accumulate(reversed(costs), min, initial=leaving))[1:])
    limits = [_COSTLY * max(pair) for pair in zip(before, behind, strict=True)]
    return [cut for cut, cost, limit in zip(cuts, costs, limits, strict=True) if cost <= limit]


class _Aligned:
    """Finds the place in the second graph that corresponds to one in the first."""

    def __init__(self, one: Flow, other: Flow) -> None:
        self._other = other
        self._first, self._last = _uses(one)
        self._other_first, self._other_last = _uses(other)

    def cut(self, position: int) -> int | None:
        """The cheapest position that has the same weights on either side; None if there is none."""
        end = len(self._other.nodes) - 1
        before = (self._other_last.get(name, -1) for name, i in self._last.items() if i < position)
        behind = (self._other_first.get(name, end) for name, i in self._first.items() if i >= position)
        first = max(len(self._other.inputs), max(before, default=-1) + 1)
        return _cheapest(self._other, first, min(behind, default=end))


def _uses(flow: Flow) -> tuple[dict[str, int], dict[str, int]]:
    """Where each weight is used first, and last."""
    uses = [(name, i) for i, names in enumerate(flow.weights) for name in names]
    return dict(reversed(uses)), dict(uses)
