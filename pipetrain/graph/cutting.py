"""Cuts a module along its graph into the layers of a chain."""

import inspect
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from typing_extensions import override

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.graph.equivalence import evaluates_alone, trains_alone
from pipetrain.graph.example import SAMPLES, Example
from pipetrain.graph.liveness import Liveness, cut_positions, is_size_of_tensor, size_pair, sizes_of
from pipetrain.graph.recorder import plain_tensors
from pipetrain.graph.sizes import check_branch, check_shape
from pipetrain.graph.tracing import trace


def cut_along_graph(model: nn.Module, example: Example, output: str | None = None) -> LayerChain:
    """The chain of a module, whose layers compute with its submodules and parameters.

    Raises:
        ConfigError: no graph can repeat what its forward does, or it has no `output` to choose.
    """
    _check_names(model, example.names)
    training, evaluation, opaque = trace(model, example, output)
    flows = Liveness(training.graph, model), Liveness(evaluation.graph, model)
    notes = [f"model: each {kind.__name__} is part of one layer, as {why}" for kind, why in opaque.items()]
    picked = evaluation.picked or training.picked
    if output is not None and picked is None:
        raise ConfigError(f"model.output={output}: {type(model).__name__} returns a single tensor; leave it out")
    if output is None and picked is not None:
        returned = f"of what {type(model).__name__} returns, `{picked}` goes to the loss"
        notes.append(f"model: {returned}; model.output names another")
    asked = [set(_batch_size_branches(each.graph)) for each in (training, evaluation)]
    chain = _chain(model, flows, notes, without=asked[0] | asked[1])
    alone = example.resized(1, example.length)
    same = (not asked[0] or trains_alone(chain, alone, output), not asked[1] or evaluates_alone(chain, alone, output))
    if all(same):
        return chain
    return _chain(model, flows, notes, without=set().union(*itertools.compress(asked, same)))


def _chain(model: nn.Module, flows: tuple[Liveness, Liveness], notes: list[str], without: set[fx.Node]) -> LayerChain:
    """The chain; its layers leave out the nodes `without`."""
    training, evaluation = flows
    starts = [(0, 0), *cut_positions(training, evaluation), (len(training.nodes), len(evaluation.nodes))]
    constants = plain_tensors(model)
    layers: list[nn.Module] = [
        Segment(_subgraph(training, a, b, without), _subgraph(evaluation, c, d, without), model, constants)
        for (a, c), (b, d) in itertools.pairwise(starts)
    ]
    # the last layer holds what the forward does not use; checkpoints contain it
    held = {id(tensor) for layer in layers for tensor in itertools.chain(layer.parameters(), layer.buffers())}
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    if unused := [name for name, tensor in named if id(tensor) not in held]:
        layers[-1].add_module("unused", ParameterHolder(unused, model))
    labels = _labels(training, [start for start, _ in starts])
    return LayerChain(model, layers, labels, notes, recorded=True)


def _labels(flow: Liveness, starts: Sequence[int]) -> list[str]:
    """Names of the layers: their first module with a weight of two dimensions or more, and a number if needed."""
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


class Segment(nn.Module):
    """A layer that repeats a part of what the forward of a larger module does.

    The graphs of both modes name submodules and tensors as in `whole`, the larger module, with whose own the segment
    computes. `constants` are its tensors that are plain attributes.
    """

    def __init__(
        self, training: fx.Graph, evaluation: fx.Graph, whole: nn.Module, constants: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        held: dict[str, None] = {}
        for node in (*training.nodes, *evaluation.nodes):
            name, attribute = str(node.target), _attribute(str(node.target))
            if node.op == "call_module":
                self.add_module(attribute, whole.get_submodule(name))
                node.target = attribute
            elif node.op == "get_attr" and node.meta["constant"]:
                setattr(self, attribute, constants[name])
                node.target = attribute
            elif node.op == "get_attr":
                held[name] = None
                node.target = f"held.{attribute}"
        if held:
            self.held = ParameterHolder(held, whole)
        self._programs = {True: _compiled(training), False: _compiled(evaluation)}

    @override
    def forward(self, *tensors: Tensor) -> Any:
        return self._programs[self.training](self, *tensors)


class ParameterHolder(nn.Module):
    """Parameters and buffers of a larger module, under their names there."""

    def __init__(self, names: Iterable[str], whole: nn.Module) -> None:
        super().__init__()
        for name in names:
            path, _, last = name.rpartition(".")
            owner = whole.get_submodule(path)
            tensor = getattr(owner, last)
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(_attribute(name), tensor)
            else:
                self.register_buffer(_attribute(name), tensor, persistent=last not in owner._non_persistent_buffers_set)


def _subgraph(flow: Liveness, first: int, last: int, without: Set[fx.Node]) -> fx.Graph:
    """A graph from the tensors that cross position `first` to those that cross `last`, without some nodes."""
    copy = _Copy(flow.inputs if first == 0 else flow.crossing(first))
    if first == 0:
        for node in flow.inputs:
            copy.graph.call_function(check_shape, (copy.of(node), node.meta["expected"]))
    skipped = flow.free | without
    for node in flow.nodes[first:last]:
        if node.op not in ("placeholder", "output") and node not in skipped:
            copy.of(node)
    leaving = flow.outputs if last == len(flow.nodes) else flow.crossing(last)
    outputs = tuple(map(copy.of, leaving))
    copy.graph.output(outputs if len(outputs) > 1 else outputs[0])
    return copy.graph


class _Copy:
    """A new graph with the arriving tensors as inputs, to which nodes of another graph are copied."""

    def __init__(self, arriving: Sequence[fx.Node]) -> None:
        self.graph = fx.Graph()
        self._arriving = arriving
        self._copies = {node: self.graph.placeholder(node.name) for node in arriving}
        self._device: fx.Node | None = None

    def of(self, node: fx.Node) -> fx.Node:
        """Copy of a node; copies what it needs, too, if that does not arrive."""
        if node not in self._copies:
            other_size = is_size_of_tensor(node) and node.args[0] not in self._copies
            self._copies[node] = self._size_of_another(node) if other_size else self._copied(node)
        return self._copies[node]

    def _copied(self, node: fx.Node) -> fx.Node:
        args, kwargs = map_aggregate((node.args, node.kwargs), self._argument)
        if node.target is check_branch:  # outside of regions, which would stay entered if it raises
            return self.graph.call_function(check_branch, args, kwargs)
        if node.meta["gradients"] is not None:
            before = self.graph.call_function(torch.is_grad_enabled)
            self.graph.call_function(torch.set_grad_enabled, (node.meta["gradients"],))
        regions = node.meta["regions"]
        entered = [self.graph.call_function(_enter_autocast, (*region, self._here())) for region in regions]
        copy = self.graph.create_node(node.op, node.target, args, kwargs, node.name)
        copy.meta = node.meta
        for region in reversed(entered):
            self.graph.call_function(torch.amp._exit_autocast, (region,))
        if node.meta["gradients"] is not None:
            self.graph.call_function(torch.set_grad_enabled, (before,))
        return copy

    def _argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self.of(value)
        # constants are made where the layer is computed
        return self._here() if isinstance(value, torch.device) else value

    def _here(self) -> fx.Node:
        if self._device is None:
            self._device = self.graph.call_function(getattr, (next(iter(self._copies.values())), "device"))
        return self._device

    def _size_of_another(self, node: fx.Node) -> fx.Node:
        for tensor in self._arriving:
            if size_pair(node) in (sizes := sizes_of(tensor)):
                return self.graph.call_function(torch.Tensor.size, (self._copies[tensor], sizes.index(size_pair(node))))
        raise AssertionError(f"{node} was to be had from what crosses")


def _enter_autocast(device: str, dtype: torch.dtype, enabled: bool, here: torch.device) -> Any:  # noqa: FBT001
    """Enters a region of autocast; one recorded on the CPU applies to the device where the layer runs."""
    if device == "cpu" and torch.amp.is_autocast_available(here.type):
        device = here.type
    return torch.amp._enter_autocast(device, dtype, enabled, False)  # noqa: FBT003


def _compiled(graph: fx.Graph) -> Callable[..., Any]:
    code = graph.python_code("self")
    variables = dict(code.globals)
    exec(compile(code.src, "<layer of a traced module>", "exec"), variables)
    return variables["forward"]  # type: ignore[no-any-return]


def _attribute(name: str) -> str:
    """Name of an attribute for a path, another for each: `norm.0` is not `norm_0`."""
    return name.replace("_", "__").replace(".", "_d_")


def _batch_size_branches(graph: fx.Graph) -> Iterator[fx.Node]:
    """Comparisons of the batch size whose outcome differs for a single sample."""
    for node in graph.nodes:
        if node.target is check_branch:
            size, other, operation, outcome, _ = node.args
            of_samples = isinstance(size, fx.Node) and size_pair(size) == SAMPLES and isinstance(other, int)
            if of_samples and getattr(operator, operation)(1, other) is not outcome:
                yield node
