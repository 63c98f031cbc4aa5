"""The graphs of a module in training and in evaluation, recorded twice each to distinguish sizes from constants."""

import copy
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx.node import map_arg
from torch.utils._pytree import tree_map_only

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.failure import described, lacks_gradients
from pipetrain.engine.seeding import python_generators_kept
from pipetrain.graph.example import SAMPLES, Example, select_outputs
from pipetrain.graph.python_state import ChangeWatcher, StateLocation, changes, clear_caches, generators, python_state
from pipetrain.graph.recorder import CannotEnterError, NeedsValuesError, Recorder, line_of, plain_tensors
from pipetrain.graph.sizes import check_branch


class ModuleCopies:
    """Copies of a module, with its weights and the inputs' values or, which costs nothing, with their shapes alone."""

    def __init__(self, model: nn.Module, *, with_values: bool) -> None:
        self.model = model
        self.fake = None if with_values else FakeTensorMode(allow_non_fake_inputs=True)
        tensors = itertools.chain(model.parameters(), model.buffers())
        self._weights = {} if with_values else {id(tensor): self._without_values(tensor) for tensor in tensors}

    def tensor(self, tensor: Tensor) -> Tensor:
        """A tensor as copies take it."""
        return tensor.clone() if self.fake is None else self.fake.from_tensor(tensor)

    def module(self, *, training: bool) -> nn.Module:
        """A copy in one of the modes; tensors that are plain attributes stay the same."""
        plain = {id(tensor): tensor for tensor in plain_tensors(self.model).values()}
        try:
            module = copy.deepcopy(self.model, {**plain, **self._weights})
        except Exception as error:  # whatever its attributes make of it
            raise ConfigError(f"model: {type(self.model).__name__} cannot be copied: {described(error)}") from error
        disable_generation_cache(module)
        return module.train(training)

    def _without_values(self, weight: Tensor) -> Tensor:
        value = self.tensor(weight.detach())
        return nn.Parameter(value, weight.requires_grad) if isinstance(weight, nn.Parameter) else value

    def returned(self, path: str, args: Any, kwargs: Any, *, training: bool) -> Any:
        """Output of a submodule for arguments of these shapes, computed with placeholder values."""
        with unset_fake_temporarily(), torch.random.fork_rng(devices=[]):
            module = copy.deepcopy(self.model.get_submodule(path)).train(training)
            args, kwargs = tree_map_only(Tensor, _placeholder_values, (args, kwargs))
            result = module(*args, **kwargs)
        return tree_map_only(Tensor, lambda tensor: self.tensor(tensor.detach()), result)


def disable_generation_cache(module: nn.Module) -> None:
    """Switches off what transformers keeps for generation."""
    if hasattr(getattr(module, "config", None), "use_cache"):
        module.config.use_cache = False  # type: ignore[union-attr]


@contextmanager
def _without_reports(mode: FakeTensorMode) -> Iterator[None]:
    """The mode, without torch's report of what cannot be done in it: another way is tried."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with mode:
            yield
    finally:
        logger.setLevel(level)


def _placeholder_values(tensor: Tensor) -> Tensor:
    """Random numbers; zeros where they may be indices."""
    if tensor.is_floating_point():
        return torch.rand(tensor.shape, dtype=tensor.dtype)
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


@dataclass(frozen=True)
class Recording:
    """A recorded forward, the name of the output picked for the loss, and the Python state that it changed.

    The `meta` of a node is what the recorder knows of it. `other_shape` and `other_value` come from a second
    recording, and `expected` of an input is its shape, None for what may differ.
    """

    graph: fx.Graph
    picked: str | None
    changes: Sequence[StateLocation]


@dataclass(eq=False)
class Tracer:
    """Records forwards of one copy of a module in one mode, in sequence; `replace` gives one of a new copy.

    Classes that are `opaque` are called as a whole.
    """

    copies: ModuleCopies
    opaque: tuple[type, ...]
    example: Example
    output: str | None
    training: bool

    def __post_init__(self) -> None:
        self.module = self.copies.module(training=self.training)
        self._state = python_state(self.module)

    def trace(self) -> Recording:
        """The first recording, its sizes and inputs compared with the second."""
        first = self._record(self.example.resized(SAMPLES[0], self.example.length))
        self._check(_draws(first))
        varied, different = self._compared(first)
        if different is not None and first.changes:
            varied, different = replace(self)._compared(first)
            if different is None:
                self._check(first.changes, of_parts=True)
        if different is not None:
            reason = "it computes with the number of samples in a way that cannot be followed"
            raise CannotEnterError(different.meta.get("module"), f"{reason} ({different.meta.get('line', '')})")
        for node, shape in zip(first.graph.nodes, self.example.fixed(varied=varied), strict=False):
            node.meta["expected"] = shape
        return first

    def _compared(self, first: Recording) -> tuple[bool, fx.Node | None]:
        """True if the length may differ; the first node that differs in a second recording, of fewer samples.

        Far from the first length, what follows from it differs, too. One such recording must be the same, and none may
        differ elsewhere than at a branch, which is checked for each minibatch: by a number that is out of sight.
        """
        length = self.example.length
        if length is not None:
            far = self._again(first, (max(2, length // 3), 2 * length + 1)) or self._again(first, (length - 1,))
            differences = [_first_difference(first.graph, other) for other in far]
            same = [other for other, node in zip(far, differences, strict=True) if node is None]
            if same and all(node is None or node.target is check_branch for node in differences):
                _fold_constant_sizes(first.graph, same)
                return True, None
        second = self._second(first, length)
        different = _first_difference(first.graph, second)
        if different is None:
            _fold_constant_sizes(first.graph, [second])
        return False, different

    def _again(self, first: Recording, lengths: Sequence[int]) -> list[fx.Graph]:
        """Graphs of recordings at these lengths, as far as the model takes them."""
        found = []
        for length in dict.fromkeys(lengths):
            with suppress(NeedsValuesError, CannotEnterError, ConfigError):  # of a model for inputs of one length
                found.append(self._second(first, length))
        return found

    def _second(self, first: Recording, length: int | None) -> fx.Graph:
        example = self.example.resized(SAMPLES[1], length)
        second = self._record(example)
        if changed := set(second.changes) - set(_draws(first)):
            # what follows from the number of samples is the same again
            self._check([location for location in self._record(example).changes if location in changed])
        return second.graph

    def _check(self, locations: Sequence[StateLocation], *, of_parts: bool = False) -> None:
        """Checks that only parts that are called as a whole change these locations.

        Raises:
            CannotEnterError: for the first module that does; not for the model itself where `of_parts` alone is asked.
        """
        if not locations:
            return
        tracer, example = replace(self), self.example.resized(SAMPLES[0], self.example.length)
        for error in tracer._find_changes(example, locations) or tracer._find_changes(example, locations):
            if not of_parts or error.module is not tracer.module:
                raise error

    def _record(self, example: Example) -> Recording:
        """Records the forward for these inputs; numbers that Python or numpy draw are the same every time.

        Raises:
            NeedsValuesError: another recording, with values, is needed.
            CannotEnterError: another one is, or none is possible.
            ConfigError: the forward fails, or returns no tensor.
        """
        clear_caches(self.module)  # which would give what another recording has put there
        before = {**self._state, **generators()}
        with python_generators_kept():
            graph, picked = self._run(example, self._recorder())
            drawn = generators()
        self._state = python_state(self.module)
        constants = (str(node.target) for node in graph.nodes if node.op == "get_attr" and node.meta["constant"])
        read = {StateLocation(*name.rpartition(".")[0].rpartition(".")[::2]) for name in constants}
        return Recording(graph, picked, changes(before, {**self._state, **drawn}, read))

    def _find_changes(self, example: Example, locations: Sequence[StateLocation]) -> list[CannotEnterError]:
        """Errors for changes of these locations in a forward, by code that a graph does not repeat."""
        watch = ChangeWatcher(locations, self.module)
        with python_generators_kept():
            self._run(example, self._recorder(watch.compare))
        return watch.changes

    def _recorder(self, moved: Callable[[nn.Module | None], object] = lambda _: None) -> Recorder:
        with_data = partial(self.copies.returned, training=self.training) if self.copies.fake else None
        return Recorder(self.module, self.opaque, with_data, moved)

    def _run(self, example: Example, recorder: Recorder) -> tuple[fx.Graph, str | None]:
        mode = nullcontext() if self.copies.fake is None else _without_reports(self.copies.fake)
        try:
            with mode, torch.set_grad_enabled(self.training):
                tensors = [self.copies.tensor(tensor) for tensor in example.tensors]
                names = example.names or [f"input_{i}" for i in range(len(tensors))]
                for name, tensor in zip(names, tensors, strict=True):
                    recorder.add_input(tensor, name)
                with recorder.recording():
                    returned = replace(example, tensors=tuple(tensors)).given_to(self.module)
                outputs, picked = select_outputs(returned, self.output)
                recorder.graph.output(tuple(recorder.node_of(tensor) for tensor in outputs))
        except (ConfigError, CannotEnterError, NeedsValuesError):
            raise
        except Exception as error:
            raise self._meaning(error, recorder.failed_in) from error
        return recorder.graph, picked

    def _meaning(self, error: Exception, entered: nn.Module | None) -> Exception:
        """What an exception of the forward means for its recording, given the innermost module that was entered."""
        if "unhashable type: 'Size'" in str(error):
            return CannotEnterError(entered, f"it looks something up by a size ({line_of(error)})")
        if self.copies.fake is None:
            name = type(self.copies.model).__name__
            place = f" ({line_of(error)})"
            reason, cure = described(error).removesuffix(place), lacks_gradients(error)
            return ConfigError(f"model: {name} fails on the first samples: {reason}{place}{cure}")
        # without values, modules that need them fail
        if entered is None or entered is self.module:
            return NeedsValuesError()
        return CannotEnterError(entered, f"it computes with values ({line_of(error)})")


Opaque = dict[type, str]
"""Classes of modules that could not be looked into, each with the reason."""


def trace(model: nn.Module, example: Example, output: str | None) -> tuple[Recording, Recording, Opaque]:
    """The recordings of `model` in training and in evaluation; it is left as it is.

    Raises:
        ConfigError: no graph can repeat what its own forward does.
    """
    try:
        return _recordings(ModuleCopies(model, with_values=False), example, output)
    except NeedsValuesError:
        with torch.random.fork_rng(devices=[]):
            return _recordings(ModuleCopies(model, with_values=True), example, output)
    finally:
        clear_caches(model)  # what a recording put there has no values


def _recordings(copies: ModuleCopies, example: Example, output: str | None) -> tuple[Recording, Recording, Opaque]:
    """Records until every module that cannot be looked into is called as a whole."""
    opaque: Opaque = {}
    while True:
        try:
            modes = (True, False)
            training, evaluation = [Tracer(copies, tuple(opaque), example, output, mode).trace() for mode in modes]
            return training, evaluation, opaque
        except CannotEnterError as found:
            kind, root = type(found.module), type(copies.model)
            if found.module is None or kind is root or kind in opaque:
                raise ConfigError(
                    f"model: {root.__name__} cannot be cut into stages: {found.reason}; move this into a submodule, "
                    "which then stays in one layer, or return an nn.Sequential whose children are the layers, or a "
                    "pipetrain.LayerChain(module, layers)"
                ) from found
            opaque[kind] = found.reason


def _draws(recording: Recording) -> list[StateLocation]:
    return [location for location in recording.changes if location.is_generator]


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


def _fold_constant_sizes(one: fx.Graph, others: Sequence[fx.Graph]) -> None:
    """Puts sizes that are always the same into the graph as numbers, and removes what nothing needs.

    A size that stays in the graph is read from a tensor, which then has to cross every cut up to the last use of the
    size. Numbers of channels or heads need not be read: they are the same in all recordings. What follows from a size
    that varies may be the same by chance, such as `length // 64`, and stays in the graph.
    """
    same = set()
    for node, *there in zip(one.nodes, *(other.nodes for other in others), strict=True):
        node.meta.update({f"other_{key}": there[0].meta[key] for key in ("shape", "value") if key in there[0].meta})
        if "value" in node.meta and all(each.meta["value"] == node.meta["value"] for each in there):
            same.add(node)
    # In order: a size computed from folded sizes alone has no sizes among its inputs any more, and is folded in turn.
    for node in list(one.nodes):
        if node in same and not any("value" in each.meta for each in node.all_input_nodes):
            _replace(node, node.meta["value"])
    # Against the order: an erased node is no user of its inputs any more.
    for node in reversed(list(one.nodes)):
        if not node.users and not _has_effect(node):
            one.erase_node(node)


def _has_effect(node: fx.Node) -> bool:
    """True if a node does something besides computing its value, so that it stays without users."""
    if node.target is check_branch:
        return bool(node.all_input_nodes)
    return node.op in ("placeholder", "output", "call_module") or bool(node.meta.get("writes"))


def _replace(node: fx.Node, value: Any) -> None:
    for user in list(node.users):
        user.args, user.kwargs = map_arg((user.args, user.kwargs), lambda each: value if each is node else each)
