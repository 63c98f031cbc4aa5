"""The graphs of a module in training and in evaluation, recorded twice each to tell sizes from constants."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_arg

from pipetrain.errors import ConfigError
from pipetrain.models.graph.copies import Copies
from pipetrain.models.graph.example import SAMPLES, Example
from pipetrain.models.graph.expectations import SameWay
from pipetrain.models.graph.recording import CannotEnterError, NeedsValuesError, Recording, Studio


@dataclass(frozen=True)
class Graphs:
    """What a module computes in both modes.

    Attributes:
        training, evaluation: their nodes' `meta` is what the recorder knows of them; `other_shape` and `other_value`
            are those of the second recording, `expected` of an input is its shape, None for what may differ.
        picked: the name of the output that goes to the loss, where there are others.
        opaque: classes of modules that could not be looked into, each with the reason.
    """

    training: fx.Graph
    evaluation: fx.Graph
    picked: str | None
    opaque: dict[type, str]


def graphs_of(model: nn.Module, example: Example, output: str | None) -> Graphs:
    """The graphs of `model`, which is left as it is.

    Raises:
        ConfigError: no graph can repeat what its own forward does.
    """
    try:
        return _Tracing(Copies(model, with_values=False), example, output).graphs()
    except NeedsValuesError:
        with torch.random.fork_rng(devices=[]):
            return _Tracing(Copies(model, with_values=True), example, output).graphs()


@dataclass
class _Tracing:
    copies: Copies
    example: Example
    output: str | None
    opaque: dict[type, str] = field(default_factory=dict)

    def graphs(self) -> Graphs:
        """Records until every module that cannot be looked into is called as a whole."""
        while True:
            try:
                training, evaluation = self._recorded(training=True), self._recorded(training=False)
                return Graphs(training.graph, evaluation.graph, evaluation.picked or training.picked, self.opaque)
            except CannotEnterError as found:
                kind, root = type(found.module), type(self.copies.model)
                if found.module is None or kind is root or kind in self.opaque:
                    raise ConfigError(
                        f"model: {root.__name__} cannot be cut into stages: {found.reason}; return an nn.Sequential "
                        "whose children are the layers, or a pipetrain.LayerChain(module, layers)"
                    ) from found
                self.opaque[kind] = found.reason

    def _recorded(self, *, training: bool) -> Recording:
        length = self.example.length
        first = self._once(SAMPLES[0], length, training=training)
        varied = length is not None and self._compared(first, length - 1, training=training) is None
        if not varied and (different := self._compared(first, length, training=training)) is not None:
            raise _lost_size(different)
        for node, shape in zip(first.graph.nodes, self.example.fixed(varied=varied), strict=False):
            node.meta["expected"] = shape
        return first

    def _compared(self, first: Recording, length: int | None, *, training: bool) -> fx.Node | None:
        """The first node that is another in a second recording, of fewer samples; None if there is none."""
        try:
            second = self._once(SAMPLES[1], length, training=training)
        except (NeedsValuesError, CannotEnterError, ConfigError):
            if length == self.example.length:
                raise
            return list[fx.Node](first.graph.nodes)[0]  # a model for inputs of one length
        different = _first_difference(first.graph, second.graph)
        if different is None:
            _compare(first.graph, second.graph)
        return different

    def _once(self, samples: int, length: int | None, *, training: bool) -> Recording:
        studio = Studio(self.copies, tuple(self.opaque), self.output, training=training)
        return studio.recorded(self.example.resized(samples, length))


def _lost_size(node: fx.Node) -> CannotEnterError:
    reason = "it computes with the number of samples in a way that cannot be followed"
    return CannotEnterError(node.meta.get("module"), f"{reason} ({node.meta.get('line', '')})")


def _first_difference(one: fx.Graph, other: fx.Graph) -> fx.Node | None:
    """The first node of `one` that is not the same in `other`, sizes aside that both compute from tensors."""
    same: dict[fx.Node, fx.Node] = {}
    pairs: Iterator[tuple[fx.Node | None, fx.Node | None]] = itertools.zip_longest(one.nodes, other.nodes)
    for a, b in pairs:
        if a is None:
            return list[fx.Node](one.nodes)[-1]
        if b is None or a.op != b.op or a.target != b.target:
            return a
        if map_arg((a.args, a.kwargs), same.get) != (b.args, b.kwargs):
            return a
        same[a] = b
    return None


def _compare(one: fx.Graph, other: fx.Graph) -> None:
    """Puts sizes that are always the same into the graph as numbers, and removes what nothing needs."""
    for a, b in zip(one.nodes, other.nodes, strict=True):
        a.meta.update({f"other_{key}": b.meta[key] for key in ("shape", "value") if key in b.meta})
    for node in list(one.nodes):
        if "value" in node.meta and node.meta["value"] == node.meta["other_value"]:
            _replace(node, node.meta["value"])
    for node in reversed(list(one.nodes)):
        if not node.users and not _acts(node):
            one.erase_node(node)


def _replace(node: fx.Node, value: Any) -> None:
    for user in list(node.users):
        user.args, user.kwargs = map_arg((user.args, user.kwargs), lambda each: value if each is node else each)


def _acts(node: fx.Node) -> bool:
    """Whether a node does something although nothing uses its result."""
    if isinstance(node.target, SameWay):
        return bool(node.all_input_nodes)
    return node.op in ("placeholder", "output", "call_module") or bool(node.meta.get("writes"))
