"""Cuts a module along its graph into the layers of a chain."""

import inspect
import itertools
from collections.abc import Iterable, Sequence

from torch import fx, nn

from pipetrain.errors import ConfigError
from pipetrain.models.chain import LayerChain, out_of_place
from pipetrain.models.graph.one_sample import questions
from pipetrain.models.graph.agreement import agrees
from pipetrain.models.graph.cuts import cuts_of
from pipetrain.models.graph.example import Example
from pipetrain.models.graph.flow import Flow
from pipetrain.models.graph.segment import Held, Part, Segment
from pipetrain.models.graph.trace import Graphs, graphs_of


def cut_along_graph(model: nn.Module, example: Example, output: str | None = None) -> LayerChain:
    """The chain of a module that is neither one itself nor an nn.Sequential.

    Args:
        model: whose submodules and parameters the layers compute with.
        example: its inputs.
        output: which entry of what the forward returns goes to the loss; None: see `outputs.selected`.

    Raises:
        ConfigError: no graph can repeat what its forward does.
    """
    _check_names(model, example.names)
    out_of_place(model)
    graphs = graphs_of(model, example, output)
    asked = questions((graphs.training, graphs.evaluation))
    chain = _chain(model, graphs, without=asked)
    if asked and not agrees(chain, example.resized(1, example.length), output):
        chain = _chain(model, graphs, without=set())
    return chain


def _chain(model: nn.Module, graphs: Graphs, without: set[fx.Node]) -> LayerChain:
    """The chain, whose layers leave out some nodes."""
    training, evaluation = Flow(graphs.training, model), Flow(graphs.evaluation, model)
    starts = [(0, 0), *cuts_of(training, evaluation), (len(training.nodes), len(evaluation.nodes))]
    layers: list[nn.Module] = [
        Segment(Part(training, a, b).graph(without), Part(evaluation, c, d).graph(without), model)
        for (a, c), (b, d) in itertools.pairwise(starts)
    ]
    _hold_unused(model, layers)
    labels = _labels(training, [start for start, _ in starts])
    return LayerChain(model, layers, labels, _notes(graphs, model), recorded=True)


def _labels(flow: Flow, starts: Sequence[int]) -> list[str]:
    """Of each layer its first module with a matrix, a kernel or a table of weights."""
    labels: list[str] = []
    for i, (first, last) in enumerate(itertools.pairwise(starts)):
        anchor = next((each for each in flow.anchors if first <= each < last), None)
        name = "" if anchor is None else min(flow.weights[anchor]).rpartition(".")[0]
        labels.append(name if name and name not in labels else f"{name or 'layer'}#{i}")
    return labels


def _check_names(model: nn.Module, names: Sequence[str]) -> None:
    parameters = inspect.signature(model.forward).parameters.values()
    taken = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    unknown = [name for name in names if name not in taken]
    if unknown and len(taken) == len(parameters):
        raise ConfigError(
            f"dataset: the input {unknown[0]} is no parameter of {type(model).__name__}.forward, which takes "
            f"{', '.join(taken)}"
        )


def _hold_unused(model: nn.Module, layers: list[nn.Module]) -> None:
    """Gives the last layer the parameters and buffers that the forward does not use: checkpoints have them, too."""
    held = {id(tensor) for layer in layers for tensor in itertools.chain(layer.parameters(), layer.buffers())}
    unused = [name for name, tensor in _named_tensors(model) if id(tensor) not in held]
    if unused:
        layers[-1].add_module("unused", Held(unused, model))


def _named_tensors(model: nn.Module) -> Iterable[tuple[str, object]]:
    return itertools.chain(model.named_parameters(), model.named_buffers())


def _notes(graphs: Graphs, model: nn.Module) -> list[str]:
    notes = [f"model: each {kind.__name__} is part of one layer, as {why}" for kind, why in graphs.opaque.items()]
    if graphs.picked is not None:
        returned = f"of what {type(model).__name__} returns, `{graphs.picked}` goes to the loss"
        notes.append(f"model: {returned}; model.output names another")
    return notes
