"""PipeDream's published profiles, `graph.txt`: a line for each layer, and one for each edge between two."""

import re
from dataclasses import dataclass

from pipetrain.errors import ConfigError

_SEPARATOR = " -- "
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


@dataclass(frozen=True)
class GraphNode:
    """A layer as the file has it: times in milliseconds, sizes in bytes, of one minibatch on one device."""

    label: str
    forward_ms: float
    backward_ms: float
    output_bytes: float
    weight_bytes: float


@dataclass
class Graph:
    """The layers by their identifiers, in the order of these, and the edges between them."""

    nodes: dict[str, GraphNode]
    edges: list[tuple[str, str]]


def parse(text: str) -> Graph:
    """The graph that a file describes, without what is no layer.

    Nodes called `Input` stand for the data, and their time for its loading; `__getitem__` nodes that nothing follows
    are unused entries of a tuple. PipeDream's own optimizer removes both. The lines of a file may have any
    order, and the sizes of a tuple, `[a; b; c]`, are added up. A layer's `stage_id`, which is part of a solution, is
    not read.

    Raises:
        ConfigError: a line is neither a layer nor an edge, a layer appears twice, or an edge names one without a line.
    """
    nodes: dict[str, GraphNode] = {}
    edges: dict[tuple[str, str], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.strip().split(_SEPARATOR)
        if line[:1].isspace() and len(fields) == 2:
            edges.setdefault((fields[0], fields[1]), number)
        elif len(fields) >= 3:
            _add(nodes, fields, number)
        elif line.strip():
            raise ConfigError(f"line {number}: {_shortened(line)!r} is neither a layer nor an edge")
    for edge, number in edges.items():
        for end in edge:
            if end not in nodes:
                raise ConfigError(f"line {number}: the edge {_SEPARATOR.join(edge)} names {end}, which has no line")
    ordered = dict(sorted(nodes.items(), key=lambda item: _natural(item[0])))
    data = {name for name, node in ordered.items() if node.label.startswith("Input")}
    layers = _without(Graph(ordered, list(edges)), data)
    return _without(layers, _unused_entries(layers))


def _add(nodes: dict[str, GraphNode], fields: list[str], number: int) -> None:
    name, label, measured = fields[:3]
    if name in nodes:
        raise ConfigError(f"line {number}: {name} has a line already")
    values = dict(part.split("=", 1) for part in measured.split(", ") if "=" in part)
    missing = [field for field in _FIELDS if field not in values]
    if missing:
        raise ConfigError(f"line {number}: {name} lacks {', '.join(missing)}")
    nodes[name] = GraphNode(label, *(_number(values[field], f"line {number}: {field}") for field in _FIELDS))


def _number(text: str, where: str) -> float:
    """A number that is not negative, or the sum of a tuple's."""
    try:
        numbers = [float(part) for part in text.strip("[]").split(";")]
    except ValueError:
        numbers = [-1.0]
    if not all(0 <= number < float("inf") for number in numbers):
        raise ConfigError(f"{where}={text}: a number of at least 0 is needed, or a tuple of them, such as [1.0; 2.0]")
    return sum(numbers)


def _unused_entries(graph: Graph) -> set[str]:
    used = {source for source, _ in graph.edges}
    return {name for name, node in graph.nodes.items() if node.label.startswith("__getitem__") and name not in used}


def _without(graph: Graph, names: set[str]) -> Graph:
    nodes = {name: node for name, node in graph.nodes.items() if name not in names}
    return Graph(nodes, [(a, b) for a, b in graph.edges if a in nodes and b in nodes])


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that has node9 before node10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def _shortened(line: str) -> str:
    return line if len(line) <= 40 else f"{line[:37]}..."
