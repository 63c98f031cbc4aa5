"""Whether a recording of several samples also holds for one, where a forward asks how many there are."""

from collections.abc import Iterable

from torch import fx

from pipetrain.models.graph.example import SAMPLES
from pipetrain.models.graph.expectations import SameWay
from pipetrain.models.graph.flow import size_pair


def questions(graphs: Iterable[fx.Graph]) -> set[fx.Node]:
    """The comparisons of the number of samples that come out otherwise for a single one."""
    nodes = (node for graph in graphs for node in graph.nodes if isinstance(node.target, SameWay))
    return {node for node in nodes if _is_of_samples(node) and not _holds_for_one(node)}


def _is_of_samples(node: fx.Node) -> bool:
    size, other = node.args
    return isinstance(size, fx.Node) and size_pair(size) == SAMPLES and isinstance(other, int)


def _holds_for_one(node: fx.Node) -> bool:
    way = node.target
    assert isinstance(way, SameWay)
    return way.operation(1, node.args[1]) is way.outcome
