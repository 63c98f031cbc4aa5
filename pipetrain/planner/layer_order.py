"""The order in which the layers of a graph can be computed."""

import heapq
from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter

from pipetrain.errors import ConfigError


def topological_order(labels: Collection[str], edges: Collection[tuple[int, int]]) -> list[int]:
    """The layers with all edges pointing forward; of those that could come next, the one of the smallest index.

    Args:
        labels: of the layers, for messages.
        edges: (from, to), indices of layers.

    Raises:
        ConfigError: there is a cycle.
    """
    sorter: TopologicalSorter[int] = TopologicalSorter({layer: () for layer in range(len(labels))})
    for source, target in edges:
        sorter.add(target, source)
    try:
        sorter.prepare()
    except CycleError as error:
        names = list(labels)
        raise ConfigError(f"a cycle of layers: {' -> '.join(names[layer] for layer in error.args[1])}") from None
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active():
        for layer in sorter.get_ready():
            heapq.heappush(ready, layer)
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
    return order
