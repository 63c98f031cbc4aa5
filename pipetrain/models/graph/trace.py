"""The graphs of a module in training and in evaluation, recorded twice each to tell sizes from constants."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_arg

from pipetrain.errors import ConfigError
from pipetrain.models.graph.copies import Copies
from pipetrain.models.graph.example import SAMPLES, Example
from pipetrain.models.graph.expectations import SameWay
from pipetrain.models.graph.python_state import Place
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
                        f"model: {root.__name__} cannot be cut into stages: {found.reason}; move this into a "
                        "submodule, which then stays in one layer, or return an nn.Sequential whose children are the "
                        "layers, or a pipetrain.LayerChain(module, layers)"
                    ) from found
                self.opaque[kind] = found.reason

    def _recorded(self, *, training: bool) -> Recording:
        studio, length = self._studio(training=training), self.example.length
        first = studio.recorded(self.example.resized(SAMPLES[0], length))
        self._check(self._draws(first), length, training=training)
        varied, different = self._compared(first, studio, training=training)
        if different is not None and first.changes:
            varied, different = self._compared(first, self._studio(training=training), training=training)
            if different is None:
                self._check(first.changes, length, training=training, of_parts=True)
        if different is not None:
            raise _lost_size(different)
        for node, shape in zip(first.graph.nodes, self.example.fixed(varied=varied), strict=False):
            node.meta["expected"] = shape
        return first

    def _compared(self, first: Recording, studio: Studio, *, training: bool) -> tuple[bool, fx.Node | None]:
        """Whether the length may differ, and the first node that is another in a second recording, of fewer samples."""
        length = self.example.length
        if length is not None:
            with suppress(NeedsValuesError, CannotEnterError, ConfigError):  # of a model for inputs of one length
                if self._difference(first, studio, length - 1, training=training) is None:
                    return True, None
        return False, self._difference(first, studio, length, training=training)

    def _difference(self, first: Recording, studio: Studio, length: int | None, *, training: bool) -> fx.Node | None:
        example = self.example.resized(SAMPLES[1], length)
        second = studio.recorded(example)
        if changed := set(second.changes) - set(self._draws(first)):
            # what follows from the number of samples is the same again
            again = [place for place in studio.recorded(example).changes if place in changed]
            self._check(again, length, training=training)
        different = _first_difference(first.graph, second.graph)
        if different is None:
            _compare(first.graph, second.graph)
        return different

    def _check(self, places: Sequence[Place], length: int | None, *, training: bool, of_parts: bool = False) -> None:
        """Finds what changes these places; unless a part that is called as a whole does, no graph can repeat it.

        Raises:
            CannotEnterError: for the first module that does; not for the model itself where `of_parts` alone is asked.
        """
        if not places:
            return
        studio, example = self._studio(training=training), self.example.resized(SAMPLES[0], length)
        for change in studio.watched(example, places) or studio.watched(example, places):
            if not of_parts or change.module is not studio.module:
                raise CannotEnterError(change.module, change.reason)

    @staticmethod
    def _draws(recording: Recording) -> list[Place]:
        return [place for place in recording.changes if place.is_generator]

    def _studio(self, *, training: bool) -> Studio:
        return Studio(self.copies, tuple(self.opaque), self.output, training=training)


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
