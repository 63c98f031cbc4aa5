"""Records what a forward computes, the functions of torch and the modules called as a whole, with the user's lines."""

import itertools
import math
import operator
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from threading import RLock, get_ident
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointFunction
from typing_extensions import override

from pipetrain.engine.models.stateful_layer import StatefulLayer
from pipetrain.graph.sizes import Size, check_branch

_NOT_THE_USERS = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}")


def current_line() -> str:
    """`file.py:12` of the innermost frame outside torch and pipetrain."""
    return next(_lines(traceback.walk_stack(sys._getframe(1))), "")


def line_of(error: BaseException) -> str:
    """`file.py:12` of the innermost frame outside torch and pipetrain that an error was raised in."""
    return ["", *_lines(traceback.walk_tb(error.__traceback__))][-1]


def _lines(frames: Iterable[tuple[FrameType, int]]) -> Iterator[str]:
    return (_source_location(frame.f_code.co_filename, line) for frame, line in frames if _is_user_code(frame))


def _source_location(file: str, line: int) -> str:
    """`file.py:12`, relative to the current folder."""
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"


def _is_user_code(frame: FrameType) -> bool:
    """True if a frame is outside torch and pipetrain."""
    return not frame.f_code.co_filename.startswith((*_NOT_THE_USERS, "<"))


_SHAPE = torch.Tensor.shape.__get__  # type: ignore[attr-defined]
_READS = {
    "item", "tolist", "numpy", "equal", "allclose", "is_nonzero",
    "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "__array__",
}  # fmt: skip
_GRADIENTS = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)
_HOOKS = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, fx.Node)
REGISTRIES = ("_parameters", "_buffers", "_modules")
_AUTOCAST = torch.amp.autocast_mode.autocast
_ONE_AT_A_TIME = RLock()
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder)


class CannotEnterError(Exception):
    """A module that must be called as a whole.

    Attributes:
        module: None if it is no particular one.
        reason: with the user's line, except for changes of Python state.
    """

    def __init__(self, module: nn.Module | None, reason: str) -> None:
        super().__init__(reason)
        self.module, self.reason = module, reason


class NeedsValuesError(Exception):
    """A module cannot be computed with tensors that have shapes and no values."""


class Recorder(TorchFunctionMode):
    """Records what a module computes while this mode is active, as a graph of torch.fx.

    A node is a function of torch or a module that is called as a whole: one of torch.nn, one without children, or one
    of an `opaque` class. The `meta` of a node has the shape and storage of its tensor, the storages that it writes, the
    line of the user's code, the innermost module that is not called as a whole, and the autocast regions around it.

    1. A mode of torch sees every function of torch, but no calls of modules: `recording` patches these.
    2. Whatever runs inside of a module that is called as a whole, or of torch's functions, is not recorded (`_quiet`).
    3. A tensor is recognized by its id, so all are kept alive (`_alive`) until the end.
    4. Sizes of tensors become `Size`, which remembers how it was computed. A comparison of sizes decides which branch
       is recorded, and becomes a node that checks its outcome in every minibatch.
    5. Anything that a graph cannot repeat raises a CannotEnterError, and the innermost module is called as a whole in
       the next recording.

    Args:
        module: whose forward is recorded.
        opaque: further classes of modules that are called as a whole.
        with_data: (path of such a module, args, kwargs) -> its output, for modules that fail on tensors without data;
            None if the recording has data.
        moved: called before and after each module, with the innermost one until then; None for one that is called as a
            whole.
    """

    def __init__(
        self,
        module: nn.Module,
        opaque: Iterable[type],
        with_data: Callable[[str, Any, Any], Any] | None = None,
        moved: Callable[[nn.Module | None], object] = lambda _: None,
    ) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.open: list[nn.Module] = []
        self.failed_in: nn.Module | None = None
        self._opaque = tuple(opaque)
        self._with_data, self._moved = with_data, moved
        self._paths = {id(part): path for path, part in module.named_modules()}
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        self._names = {id(tensor): name for name, tensor in reversed(named)}
        plain = plain_tensors(module)
        self._constants = {id(tensor): name for name, tensor in plain.items()}
        held = {path.rpartition(".")[0].lstrip("."): tensor for path, tensor in plain.items()}
        frozen = {name: each for name, each in module.named_parameters() if not each.requires_grad}
        self._copied = {_storage(tensor): name for name, tensor in {**held, **frozen}.items()}
        """Storages of which each layer may have a copy, unlike those of weights and buffers."""
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[Any] = []
        self._quiet = False
        self._gradients = True
        self._regions: list[tuple[str, torch.dtype, bool]] = []

    # -- inputs, outputs, comparisons ---------------------------------------------------------------------------------

    def add_input(self, tensor: Tensor, name: str) -> None:
        """Makes `tensor` an input of the graph."""
        self._define(self.graph.placeholder(name), tensor)

    def node_of(self, value: Any) -> Any:
        """The value as an argument of a node.

        Raises:
            CannotEnterError: it is neither a known tensor nor plain data.
        """
        if isinstance(value, PackedSequence):  # a tuple, whose parts alone nothing accepts
            raise self._refusal("a PackedSequence is passed on")
        return map_aggregate(value, self._leaf)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._nodes.get(id(value)) or self._held(value)
        if isinstance(value, Size):
            return self._nodes.get(id(value)) or self._size_node(value)
        if value is None or value is Ellipsis or isinstance(value, _PLAIN):
            return value
        raise self._refusal(f"a {type(value).__name__} is passed on")

    def _on_comparison(self, operation: str, left: Any, right: Any, outcome: bool) -> None:  # noqa: FBT001
        """Records a comparison of sizes, which decided on a branch of the forward."""
        if not self._quiet:
            self._add("call_function", check_branch, (left, right, operation, outcome, current_line()), {})

    def _refusal(self, reason: str) -> CannotEnterError:
        return CannotEnterError(self.open[-1] if self.open else None, f"{reason} ({current_line()})")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Also sees calls of modules and of autograd functions, and regions of autocast, in the calling thread alone.

        torch has no hook for these three, so they are patched:

        1. The patches are seen by all threads. In any other thread than this one they call what they replace.
        2. Each recording puts back what it found, so no two may overlap: a second one waits.
        3. `Function.apply` is looked up in its base class by every autograd function, also where it was bound earlier.
        """
        function_base: Any = torch.autograd.Function.__mro__[1]
        thread = get_ident()

        def apply(function: Any, *args: Any) -> Any:
            original = super(function_base, function).apply  # type: ignore[misc]
            return self._applied(original, function, args) if get_ident() == thread else original(*args)

        def only_here(recorded: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *args, **kwargs: (recorded if get_ident() == thread else original)(*args, **kwargs)

        self._gradients = torch.is_grad_enabled()
        with _ONE_AT_A_TIME, self:
            call, enter, leave = nn.Module.__call__, _AUTOCAST.__enter__, _AUTOCAST.__exit__
            nn.Module.__call__ = only_here(partial(self._module, call), call)  # type: ignore[method-assign]
            function_base.apply = classmethod(apply)
            _AUTOCAST.__enter__ = only_here(partial(self._entered, enter), enter)  # type: ignore[method-assign]
            _AUTOCAST.__exit__ = only_here(partial(self._left, leave), leave)  # type: ignore[method-assign]
            try:
                yield
            finally:
                nn.Module.__call__ = call  # type: ignore[method-assign]
                _AUTOCAST.__enter__, _AUTOCAST.__exit__ = enter, leave  # type: ignore[method-assign]
                del function_base.apply

    # -- what the forward calls ---------------------------------------------------------------------------------------

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._quiet:
            return func(*args, **kwargs)
        with self._quietly():
            if func == _SHAPE or func is torch.Tensor.size:
                dimension = (*args[1:], *kwargs.values())
                return self._size(args[0], dimension[0]) if dimension and func != _SHAPE else self._shape(args[0])
            if func in (torch.Tensor.numel, torch.Tensor.nelement, torch.numel):
                return math.prod(self._shape(args[0]))
            if (reason := _reason_against(func, args, kwargs)) is not None:
                raise self._refusal(reason)
            return self._function(func, args, kwargs)

    def _shape(self, tensor: Tensor) -> torch.Size:
        return torch.Size([self._size(tensor, k) for k in range(tensor.ndim)])

    def _function(self, func: Any, args: Any, kwargs: Any) -> Any:
        result, written = _with_written(func, args, kwargs)
        if not written and not any(True for _ in tensors_in(result)):
            return result
        if func.__name__ == "__get__":
            func, args = getattr, (args[0], func.__self__.__name__)
        elif func.__name__ == "__set__":
            raise self._refusal(f"the forward sets the attribute {func.__self__.__name__} of a tensor")
        self._define(self._add("call_function", func, args, kwargs, written), result)
        return result

    def _module(self, call: Callable[..., Any], module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        path = self._paths.get(id(module))
        if self._quiet or path is None:
            return call(module, *args, **kwargs)
        self._moved(self.open[-1] if self.open else None)
        if self._is_whole(module) and self.open:
            with self._quietly():
                result, written = _with_written(partial(self._computed, path, partial(call, module)), args, kwargs)
                result = tree_map_only(Tensor, self._another, result)
                self._define(self._add("call_module", path, args, kwargs, written), result)
            self._moved(None)
            return result
        self.open.append(module)
        try:
            return call(module, *args, **kwargs)
        except Exception:
            self.failed_in = self.failed_in or module
            raise
        finally:
            self._moved(self.open.pop())

    def _is_whole(self, module: nn.Module) -> bool:
        ours = type(module).__module__.startswith("torch.nn.") and not isinstance(module, _CONTAINERS)
        childless = next(module.children(), None) is None
        compiled = isinstance(module, torch.jit.ScriptModule) or "_orig_mod" in module._modules
        return (
            ours
            or childless
            or compiled
            or parametrize.is_parametrized(module)
            or isinstance(module, (StatefulLayer, *self._opaque))
        )

    def _another(self, tensor: Tensor) -> Tensor:
        """A tensor other than the module's inputs: it may return its input now, and something else next time."""
        return tensor.view_as(tensor) if id(tensor) in self._nodes else tensor

    def _computed(self, path: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception:
            if self._with_data is None:
                raise
        try:
            return self._with_data(path, args, kwargs)
        except Exception as error:
            raise NeedsValuesError from error

    def _applied(self, apply: Callable[..., Any], function: Any, args: Any) -> Any:
        if self._quiet:
            return apply(*args)
        if function is CheckpointFunction:
            raise self._refusal("it calls checkpoint with use_reentrant=True, of which only False can be followed")
        with self._quietly():
            result = apply(*args)
            self._define(self._add("call_function", _applying(function), args, {}), result)
        return result

    def _entered(self, enter: Callable[..., Any], region: Any) -> Any:
        self._regions.append((region.device, region.fast_dtype, region._enabled))
        return enter(region)

    def _left(self, leave: Callable[..., Any], region: Any, *error: Any) -> Any:
        self._regions.pop()
        return leave(region, *error)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _add(self, op: str, target: Any, args: Any, kwargs: Any, written: Iterable[Tensor] = ()) -> fx.Node:
        writes = {_storage(tensor) for tensor in written}
        if changed := [self._copied[storage] for storage in writes if storage in self._copied]:
            raise self._refusal(f"the forward changes {changed[0]}, which is no buffer; register it as one")
        arguments = tuple(self.node_of(each) for each in args)
        node = self.graph.create_node(op, target, arguments, {key: self.node_of(each) for key, each in kwargs.items()})
        node.meta.update(
            line=current_line(),
            module=self.open[-1] if self.open else None,
            writes=writes,
            gradients=None if torch.is_grad_enabled() == self._gradients else not self._gradients,
            regions=tuple(self._regions),
        )
        return node

    def _define(self, node: fx.Node, value: Any) -> None:
        """Maps a tensor, or those inside of tuples and dicts, to a node."""
        if isinstance(value, Tensor):
            if id(value) not in self._nodes and id(value) not in self._names:
                self._nodes[id(value)] = node
                self._alive.append(value)
                node.meta.update(_facts(value))
            return
        for key, part in _parts(value):
            if any(id(tensor) not in self._nodes for tensor in tensors_in(part)):
                self._define(self._add("call_function", operator.getitem, (node, key), {}), part)

    def _held(self, tensor: Tensor) -> fx.Node:
        """A parameter, a buffer, or a tensor that is a plain attribute."""
        name = self._names.get(id(tensor))
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise self._refusal("the forward applies torch.vmap or another transform of torch.func")
        if name is None and id(tensor) not in self._constants:
            raise self._refusal(f"a tensor of shape {tuple(tensor.shape)} is made where no torch function is seen")
        node = self.graph.get_attr(self._constants[id(tensor)] if name is None else name)
        node.meta.update(_facts(tensor), constant=name is None, gradients=None, writes=set(), regions=())
        self._nodes[id(tensor)] = node
        return node

    def _size(self, tensor: Tensor, k: int) -> Size:
        return Size.of(tensor.shape[k], torch.Tensor.size, (tensor, k % tensor.ndim), self._on_comparison)

    def _size_node(self, size: Size) -> fx.Node:
        node = self._add("call_function", size.operation, size.operands, {})
        node.meta["value"] = int(size)
        self._nodes[id(size)] = node
        self._alive.append(size)
        return node


@cache
def _applying(function: Any) -> Callable[..., Any]:
    """A function that applies a user's autograd function; the same one for each recording."""

    def applied(*args: Any) -> Any:
        return function.apply(*args)

    applied.__name__ = applied.__qualname__ = function.__name__
    return applied


def _reason_against(func: Any, args: Any, kwargs: Any) -> str | None:
    """Why a call cannot be recorded; None if it can."""
    if func.__name__ in _READS:
        return "the forward reads the values of a tensor"
    if func in _HOOKS:
        hook = (*args[1:], *kwargs.values())[0]
        return f"the forward registers the hook {_name_of(hook)} on a tensor"
    return f"the forward takes a gradient by {func.__name__}" if func in _GRADIENTS else None


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _with_written(call: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, list[Tensor]]:
    """The result of a call, and the tensors among its arguments that it wrote."""
    versions = [(tensor, tensor._version) for tensor in tensors_in((args, kwargs))]
    result = call(*args, **kwargs)
    return result, [tensor for tensor, version in versions if tensor._version != version]


def plain_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Tensors that are plain attributes, or in lists and dicts that are, and neither parameters nor buffers."""
    found: dict[str, Tensor] = {}
    registered = {id(tensor) for tensor in itertools.chain(module.parameters(), module.buffers())}
    for path, part in module.named_modules():
        own = {key: value for key, value in vars(part).items() if key not in REGISTRIES}
        for name, value in own.items():
            for number, tensor in enumerate(tensors_in(value)):
                if id(tensor) not in registered:
                    found[f"{path}.{name}.{number}"] = tensor
    return found


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """All tensors of nested tuples, lists and dicts; a tensor itself."""
    if isinstance(tree, Tensor):
        yield tree
    for _, part in _parts(tree):
        yield from tensors_in(part)


def _parts(tree: Any) -> Iterable[tuple[Any, Any]]:
    """(key or index, entry) of a tuple, list or dict."""
    if isinstance(tree, Mapping):
        return tree.items()
    return enumerate(tree) if isinstance(tree, tuple | list) else ()


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _facts(tensor: Tensor) -> dict[str, Any]:
    return {"shape": tuple(tensor.shape), "bytes": tensor.numel() * tensor.element_size(), "storage": _storage(tensor)}
