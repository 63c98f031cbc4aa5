"""The tensors that cross each position of a graph, and the positions at which it is cut."""

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn

_RANDOM = (
    "rand", "normal", "bernoulli", "multinomial", "binomial", "poisson", "standard_gamma", "dirichlet", "dropout",
    "empty",
)  # fmt: skip

SizePair = tuple[int, int]
"""A size in both recordings, by which it is recognized."""


class Liveness:
    """The tensors that flow through a graph; position p is just before node p.

    Sizes, constants, parameters, and what is computed from sizes and constants alone are free: they cross no position,
    as each layer that needs them computes them again. The module has the parameters and buffers that the graph reads.
    """

    def __init__(self, graph: fx.Graph, module: nn.Module) -> None:
        self.nodes = list(graph.nodes)
        self.inputs = [node for node in self.nodes if node.op == "placeholder"]
        self.outputs: Sequence[fx.Node] = self.nodes[-1].args[0]
        self._index = {node: i for i, node in enumerate(self.nodes)}
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self._modules = dict(module.named_modules())
        self.free = self._free_nodes()
        self._last_use = self._last_uses()

    def crossing(self, position: int) -> list[fx.Node]:
        """Nodes before a position whose tensors are needed after it."""
        return [node for node in self.nodes[:position] if node not in self.free and self._last_use[node] >= position]

    @cached_property
    def bytes_at(self) -> list[int]:
        """By position, the bytes of what crosses there, for the samples of the recording."""
        crossing = np.zeros(len(self.nodes) + 1, np.int64)
        for node, first, last in self._carried:
            crossing[first:last] += node.meta["bytes"]
        return crossing.tolist()

    @cached_property
    def may_be_cut(self) -> list[bool]:
        """By position, True if what crosses is all that later nodes need, and none of it is written later."""
        # The layers on the two sides of a cut may be in two processes, so
        # 1. at least one tensor crosses, from which the layers behind the cut learn the number of samples;
        # 2. no tensor of the layers before it is written behind it, which would not change the original, and each node
        #    that returns several tensors is unpacked, as only tensors can be sent;
        # 3. each size that is needed behind it is a dimension of some tensor that crosses.
        some = self._covered((first, last) for _, first, last in self._carried)
        together = self._covered(itertools.chain(self._until_written(), self._until_unpacked()))
        lost = np.zeros(len(self.nodes), bool)
        for size, needed in self._sizes_needed().items():
            there = ((first, last) for node, first, last in self._carried if size in sizes_of(node))
            lost |= self._covered(needed) & ~self._covered(there)
        return (some & ~together & ~lost).tolist()  # type: ignore[no-any-return]

    def _covered(self, stretches: Iterable[tuple[int, int]]) -> NDArray[np.bool_]:
        """For each position, True if a range (first, last exclusive) contains it."""
        covered = np.zeros(len(self.nodes), bool)
        for first, last in stretches:
            covered[first:last] = True
        return covered

    @cached_property
    def weights(self) -> list[set[str]]:
        """The names of the parameters that each node computes with."""
        return [self._weights(node) for node in self.nodes]

    @cached_property
    def anchors(self) -> list[int]:
        """The nodes that compute with a matrix, a kernel or a table of weights, and not just with vectors."""
        large = {name for name, weight in self._parameters.items() if sum(size > 1 for size in weight.shape) > 1}
        return [i for i, names in enumerate(self.weights) if names & large]

    def _weights(self, node: fx.Node) -> set[str]:
        if node.op == "call_module":
            inside = self._modules[str(node.target)].named_parameters(remove_duplicate=False)
            return {f"{node.target}.{name}" for name, _ in inside}
        held = {str(each.target) for each in node.all_input_nodes if each.op == "get_attr"}
        return held & self._parameters.keys() if node.op != "output" else set()

    def _free_nodes(self) -> set[fx.Node]:
        written = {storage for node in self.nodes for storage in node.meta.get("writes", ())}
        free: set[fx.Node] = set()
        for node in self.nodes:
            if node.op == "get_attr":
                is_free = node.meta["constant"] or node.target in self._parameters or node.meta["storage"] in written
            else:
                is_free = "value" in node.meta or (_is_constant(node, free) and node.meta["storage"] not in written)
            if is_free:
                free.add(node)
        return free

    def _last_uses(self) -> dict[fx.Node, int]:
        """For each node, the last node that is not free and needs it, directly or through free ones."""
        last: dict[fx.Node, int] = {}
        for node in reversed(self.nodes):
            users = (user for user in node.users if not (is_size_of_tensor(user) and user.args[0] is node))
            last[node] = max((last[user] if user in self.free else self._index[user] for user in users), default=-1)
        return last

    @cached_property
    def _carried(self) -> list[tuple[fx.Node, int, int]]:
        """The nodes that are not free, and the positions that they cross: from the first to before the last."""
        nodes = [node for node in self.nodes if node not in self.free and "bytes" in node.meta]
        return [(node, self._index[node] + 1, max(self._index[node], self._last_use[node]) + 1) for node in nodes]

    def _until_written(self) -> list[tuple[int, int]]:
        """The positions between the first appearance of a storage and its last writer."""
        born: dict[int, int] = {}
        last: dict[int, int] = {}
        for i, node in enumerate(self.nodes):
            if "storage" in node.meta and node.op != "get_attr":
                born.setdefault(node.meta["storage"], i)
            last.update(dict.fromkeys(node.meta.get("writes", ()), i))
        return [(born[storage] + 1, i + 1) for storage, i in last.items() if storage in born]

    def _until_unpacked(self) -> list[tuple[int, int]]:
        """Positions between a node that returns several tensors and the nodes that select one of them."""
        several = (node for node in self.nodes if node not in self.free and "bytes" not in node.meta)
        return [(self._index[node] + 1, self._last_use[node] + 1) for node in several]

    def _sizes_needed(self) -> dict[SizePair, list[tuple[int, int]]]:
        """The sizes of tensors that nodes compute with, each with the positions between the tensor and the nodes."""
        needed: dict[SizePair, list[tuple[int, int]]] = {}
        for node in self.nodes:
            if is_size_of_tensor(node):
                positions = self._index[node.args[0]] + 1, self._last_use[node] + 1
                needed.setdefault(size_pair(node), []).append(positions)
        return needed


def is_size_of_tensor(node: fx.Node) -> bool:
    """True for a dimension of a tensor, False for a size computed from other sizes."""
    return node.target is torch.Tensor.size and "value" in node.meta


def size_pair(node: fx.Node) -> SizePair:
    """Values of a size in both recordings."""
    return node.meta["value"], node.meta["other_value"]


def sizes_of(node: fx.Node) -> list[SizePair]:
    """The sizes of a tensor in both recordings."""
    return list(zip(node.meta["shape"], node.meta["other_shape"], strict=True))


def _is_constant(node: fx.Node, free: set[fx.Node]) -> bool:
    """True if a node calls a function of constants alone that is neither random nor writes."""
    if node.op != "call_function" or "shape" not in node.meta or node.meta["writes"]:
        return False
    if any(word in getattr(node.target, "__name__", "") for word in _RANDOM):
        return False
    return all(each in free and (each.op != "get_attr" or each.meta["constant"]) for each in node.all_input_nodes)


_COSTLY = 2
"""A cut is left out if more bytes cross it than this factor times the bytes of the cheapest cuts before and after.

2 allows cuts inside residual blocks, where the block's input crosses, too."""


def cut_positions(training: Liveness, evaluation: Liveness) -> list[tuple[int, int]]:
    """The positions at which the two graphs are cut, with the same weights on either side."""
    between = (_cheapest(training, a + 1, b) for a, b in itertools.pairwise(training.anchors))
    found: list[tuple[int, int]] = []
    for cut in _cheap(training, [position for position in between if position is not None]):
        aligned = _aligned(training, cut, evaluation)
        if aligned is not None and (not found or aligned > found[-1][1]):
            found.append((cut, aligned))
    return found


def _cheapest(flow: Liveness, first: int, last: int) -> int | None:
    """The cheapest position of a range, the last of several."""
    allowed = [position for position in range(last, first - 1, -1) if flow.may_be_cut[position]]
    return min(allowed, key=flow.bytes_at.__getitem__, default=None)


def _cheap(flow: Liveness, cuts: Sequence[int]) -> list[int]:
    costs = [flow.bytes_at[cut] for cut in cuts]
    before = itertools.accumulate(costs, min)
    leaving = sum(node.meta["bytes"] for node in flow.outputs)
    after = reversed(list(itertools.accumulate(reversed(costs), min, initial=leaving))[1:])
    limits = [_COSTLY * max(pair) for pair in zip(before, after, strict=True)]
    return [cut for cut, cost, limit in zip(cuts, costs, limits, strict=True) if cost <= limit]


def _aligned(one: Liveness, position: int, other: Liveness) -> int | None:
    """The cheapest position of another graph with the same weights on either side, or None."""
    before, after = set().union(*one.weights[:position]), set().union(*one.weights[position:])
    last = max((i for i, names in enumerate(other.weights) if names & (before - after)), default=-1)
    end = len(other.nodes) - 1
    first = next((i for i, names in enumerate(other.weights) if names & (after - before)), end)
    return _cheapest(other, max(len(other.inputs), last + 1), first)
