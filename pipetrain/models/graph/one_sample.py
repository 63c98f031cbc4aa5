"""Whether a recording of several samples also holds for one, where a forward asks how many there are."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import fx, nn

from pipetrain.models.chain import LayerChain
from pipetrain.models.graph.example import SAMPLES, Example
from pipetrain.models.graph.expectations import SameWay
from pipetrain.models.graph.flow import size_pair
from pipetrain.models.graph.outputs import selected


def questions(graphs: Iterable[fx.Graph]) -> set[fx.Node]:
    """The comparisons of the number of samples that come out otherwise for a single one."""
    nodes = (node for graph in graphs for node in graph.nodes if isinstance(node.target, SameWay))
    return {node for node in nodes if _is_of_samples(node) and not _holds_for_one(node)}


def agrees(chain: LayerChain, example: Example, output: str | None) -> bool:
    """Whether the layers give what the module itself gives for one sample, in evaluation."""
    one = example.resized(1, example.length)
    named = dict(zip(one.names, one.tensors, strict=False))
    with torch.no_grad(), torch.random.fork_rng(devices=[]), _evaluating([chain.module, *chain.layers]):
        try:
            plain, _ = selected(chain.module(**named) if named else chain.module(*one.tensors), output)
            returned = chain(*one.tensors)
        except Exception:  # whatever the forward makes of a single sample
            return False
    ours = returned if isinstance(returned, tuple) else (returned,)
    return all(map(_same, ours, plain))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def _is_of_samples(node: fx.Node) -> bool:
    size, other = node.args
    return isinstance(size, fx.Node) and size_pair(size) == SAMPLES and isinstance(other, int)


def _holds_for_one(node: fx.Node) -> bool:
    way = node.target
    assert isinstance(way, SameWay)
    return way.operation(1, node.args[1]) is way.outcome


@contextmanager
def _evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    parts = [part for module in modules for part in module.modules()]
    modes = [part.training for part in parts]
    try:
        for part in parts:
            part.training = False
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode
