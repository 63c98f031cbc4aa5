"""What Python keeps from one forward of a module to the next, and a graph cannot repeat: attributes, random states."""

import functools
import itertools
import pickle
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Set
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from typing_extensions import override

from pipetrain.models.graph.recorder import REGISTRIES, tensors_in
from pipetrain.models.graph.sizes import Size

_PLAIN = (bool, int, float, complex, str, bytes, type(None), Enum)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_SEQUENCES = (list, tuple, deque, Set)
_GLOBALS = (bool, int, float, list, dict, set, *_GENERATORS)
_OF_ALL_MODULES = vars(nn.Module()).keys()
_DEEPEST = 5
_LONGEST = 1000
"""Of longer containers only the length is looked at."""
_OPEN_LIBRARIES = ("types", "argparse")
"""Of Python's own: their objects are namespaces."""
_DEFAULTS: dict[str, Callable[[], Any]] = {"random": random.getstate, "numpy.random": np.random.get_state}

Seen = dict[int, tuple[Any, Any]]
"""By its id an object, which so stays alive, and what it was copied to."""


class Place(NamedTuple):
    """Where Python keeps something.

    Attributes:
        path: of the submodule that has it as an attribute; None where it belongs to none.
        name: of the attribute, the global or the default generator.
    """

    path: str | None
    name: str

    @property
    def is_generator(self) -> bool:
        """Whether it is the state of a default generator of random numbers."""
        return self.path is None and self.name in _DEFAULTS

    def held(self, module: nn.Module) -> "Held":
        """What is kept there."""
        if self.path is None:
            return Held(_print(_DEFAULTS[self.name]() if self.is_generator else dict(_globals(module)).get(self.name)))
        part = module.get_submodule(self.path)
        if self.name in part._buffers or self.name in part._parameters:
            return Held(_Same(getattr(part, self.name)))
        return _held(vars(part).get(self.name), {})

    def described(self, module: nn.Module) -> str:
        """What a forward did that left something else there."""
        if self.path is None:
            return f"draws numbers from {self.name}" if self.is_generator else f"changes the global {self.name}"
        if self.name in module.get_submodule(self.path)._buffers:
            return f"assigns another tensor to the buffer `{self.name}` instead of writing into it"
        return f"changes the attribute `{self.name}`"


class Held(NamedTuple):
    """What is kept in a place, equal as long as it is the same.

    Attributes:
        value: in tuples, without its tensors.
        tensors: each equal to itself alone.
    """

    value: Any
    tensors: tuple["_Same", ...] = ()


def generators() -> dict[Place, Held]:
    """The states of the default generators of Python and numpy."""
    return {Place(None, name): Held(_print(state())) for name, state in _DEFAULTS.items()}


def python_state(module: nn.Module) -> dict[Place, Held]:
    """What attributes of the module's parts and globals of their files hold."""
    seen: Seen = {}
    state = {Place(None, name): Held(_print(value, seen)) for name, value in _globals(module)}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in REGISTRIES and (name not in _OF_ALL_MODULES or value):
                state[Place(path, name)] = _held(value, seen)
        for name, tensor in itertools.chain(part._buffers.items(), part._parameters.items()):
            state[Place(path, name)] = Held(_Same(tensor))
    return state


def changes(before: Mapping[Place, Held], after: Mapping[Place, Held], read: Container[Place]) -> list[Place]:
    """The places where something else is kept; where only tensors are others, those that a forward has `read`."""
    none = Held(None)
    pairs = ((place, before.get(place, none), after.get(place, none)) for place in {**before, **after})
    return [place for place, a, b in pairs if a.value != b.value or (place in read and a.tensors != b.tensors)]


def _globals(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Those of the files that the classes of its parts are defined in, and attributes of the classes themselves."""
    kinds = {kind for part in module.modules() for kind in type(part).__mro__ if not _is_torchs(kind)}
    files = {kind.__module__: vars(sys.modules[kind.__module__]) for kind in kinds if kind.__module__ in sys.modules}
    owners = {**files, **{f"{kind.__module__}.{kind.__qualname__}": vars(kind) for kind in kinds}}
    for owner, names in owners.items():
        for name, value in list(names.items()):
            if isinstance(value, _GLOBALS) and not name.startswith("__"):
                yield f"{owner}.{name}", value


def _is_torchs(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("torch", "builtins")


class _Same:
    """Equal to itself alone, and alive as long as it is compared."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _held(value: Any, seen: Seen) -> Held:
    if isinstance(value, _PLAIN):
        return Held(_print(value))
    return Held(_print(value, seen), tuple(_Same(tensor) for tensor in tensors_in(value)))


def _print(value: Any, seen: Seen | None = None, depth: int = 0) -> Any:
    """A copy of a value in tuples; of tensors and modules only that they are there."""
    seen = {} if seen is None else seen
    if isinstance(value, Tensor):
        return "Tensor"
    if isinstance(value, Size | nn.Module):
        return type(value).__name__
    if isinstance(value, _PLAIN):
        return type(value).__name__, repr(value) if isinstance(value, float | complex) else value
    if isinstance(value, _GENERATORS):
        return pickle.dumps(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype, value.shape, value.tobytes() if value.size <= _LONGEST else None
    if depth == _DEEPEST:
        return type(value).__name__
    if id(value) not in seen:
        seen[id(value)] = value, None
        seen[id(value)] = value, tuple(_print(part, seen, depth + 1) for part in _parts(value))
    return type(value).__name__, seen[id(value)][1]


def _parts(value: Any) -> Iterable[Any]:
    """What an object is made of, tensors left out."""
    if isinstance(value, Mapping):
        return itertools.chain.from_iterable(value.items()) if len(value) <= _LONGEST else (len(value),)
    if isinstance(value, _SEQUENCES):
        return [part for part in value if not isinstance(part, Tensor)] if len(value) <= _LONGEST else (len(value),)
    if isinstance(value, types.FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
    if isinstance(value, types.MethodType):
        return (value.__self__,)
    if isinstance(value, functools.partial):
        return value.func, *value.args, value.keywords
    if isinstance(value, itertools.count):
        return (repr(value),)
    return itertools.chain.from_iterable(vars(value).items()) if _is_looked_into(value) else ()


def _is_looked_into(value: Any) -> bool:
    library = type(value).__module__.partition(".")[0]
    closed = library in sys.stdlib_module_names and library not in _OPEN_LIBRARIES
    return hasattr(value, "__dict__") and not isinstance(value, type) and not closed and library != "torch"
