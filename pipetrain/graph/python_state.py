"""Python state that lasts from one forward to the next, such as attributes, and the modules that change it."""

import functools
import itertools
import operator
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

from pipetrain.graph.recorder import REGISTRIES, CannotEnterError, tensors_in
from pipetrain.graph.sizes import Size

_PLAIN = (bool, int, float, complex, str, bytes, type(None), Enum)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_SEQUENCES = (list, tuple, deque, Set)
_GLOBALS = (bool, int, float, list, dict, set, *_GENERATORS)
_OF_ALL_MODULES = vars(nn.Module()).keys()
_DEEPEST = 5
_LONGEST = 1000
"""Largest length of a container that is compared by its items; longer ones are compared by length only."""
_OPEN_LIBRARIES = ("types", "argparse")
"""Modules of the standard library whose objects are compared by their attributes."""
_DEFAULTS: dict[str, Callable[[], Any]] = {"random": random.getstate, "numpy.random": np.random.get_state}

Seen = dict[int, tuple[Any, Any]]
"""Id of an object -> the object, which stays alive, and its copy."""


class StateLocation(NamedTuple):
    """An attribute of the submodule `path`; a global or a default generator of random numbers if that is None."""

    path: str | None
    name: str

    @property
    def is_generator(self) -> bool:
        """True for the state of a default generator of random numbers."""
        return self.path is None and self.name in _DEFAULTS

    def snapshot(self, module: nn.Module) -> "Snapshot":
        """Copy of the current content."""
        if self.path is None:
            return Snapshot(
                _comparable(_DEFAULTS[self.name]() if self.is_generator else dict(_globals(module)).get(self.name))
            )
        part = module.get_submodule(self.path)
        if self.name in part._buffers or self.name in part._parameters:
            return Snapshot(_Identity(getattr(part, self.name)))
        return _snapshot(vars(part).get(self.name), {})

    def described(self, module: nn.Module) -> str:
        """Description of a change, for messages; its subject is the forward."""
        if self.path is None:
            return f"draws numbers from {self.name}" if self.is_generator else f"changes the global {self.name}"
        if self.name in module.get_submodule(self.path)._buffers:
            return f"assigns another tensor to the buffer `{self.name}` instead of writing into it"
        return f"changes the attribute `{self.name}`"


class Snapshot(NamedTuple):
    """Content of a location: nested tuples without tensors, and the tensors; equal as long as neither changes."""

    value: Any
    tensors: tuple["_Identity", ...] = ()


def generators() -> dict[StateLocation, Snapshot]:
    """States of the default generators of Python and numpy."""
    return {StateLocation(None, name): Snapshot(_comparable(state())) for name, state in _DEFAULTS.items()}


def python_state(module: nn.Module) -> dict[StateLocation, Snapshot]:
    """Contents of the attributes of all submodules, and of the globals of their files."""
    seen: Seen = {}
    state = {StateLocation(None, name): Snapshot(_comparable(value, seen)) for name, value in _globals(module)}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in REGISTRIES and (name not in _OF_ALL_MODULES or value):
                state[StateLocation(path, name)] = _snapshot(value, seen)
        for name, tensor in itertools.chain(part._buffers.items(), part._parameters.items()):
            state[StateLocation(path, name)] = Snapshot(_Identity(tensor))
    return state


def changes(
    before: Mapping[StateLocation, Snapshot], after: Mapping[StateLocation, Snapshot], read: Container[StateLocation]
) -> list[StateLocation]:
    """Locations whose value changed; those whose tensors alone did if they are in `read`."""
    none = Snapshot(None)
    pairs = ((location, before.get(location, none), after.get(location, none)) for location in {**before, **after})
    return [location for location, a, b in pairs if a.value != b.value or (location in read and a.tensors != b.tensors)]


def _globals(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Globals of the files that define the submodules' classes, and attributes of these classes."""
    for owner, names in _owners(module).items():
        for name, value in list(names.items()):
            if isinstance(value, _GLOBALS) and not name.startswith("__"):
                yield f"{owner}.{name}", value


def clear_caches(module: nn.Module) -> None:
    """Empties the caches of functions in these files and classes, such as `functools.lru_cache`."""
    for names in _owners(module).values():
        for value in list(names.values()):
            if callable(value) and hasattr(value, "cache_info"):
                value.cache_clear()


def _owners(module: nn.Module) -> dict[str, Mapping[str, Any]]:
    """Name -> contents of the files that define the submodules' classes, and of these classes."""
    mro = {kind for part in module.modules() for kind in type(part).__mro__}
    kinds = {kind for kind in mro if kind.__module__.partition(".")[0] not in ("torch", "builtins")}
    files = {kind.__module__: vars(sys.modules[kind.__module__]) for kind in kinds if kind.__module__ in sys.modules}
    return {**files, **{f"{kind.__module__}.{kind.__qualname__}": vars(kind) for kind in kinds}}


class _Identity:
    """Compares a value by identity, and keeps it alive."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _snapshot(value: Any, seen: Seen) -> Snapshot:
    if isinstance(value, _PLAIN):
        return Snapshot(_comparable(value))
    return Snapshot(_comparable(value, seen), tuple(_Identity(tensor) for tensor in tensors_in(value)))


def _comparable(value: Any, seen: Seen | None = None, depth: int = 0) -> Any:
    """Copy of a value as nested tuples; tensors and modules become their names."""
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
        seen[id(value)] = value, tuple(_comparable(part, seen, depth + 1) for part in _parts(value))
    return type(value).__name__, seen[id(value)][1]


def _parts(value: Any) -> Iterable[Any]:
    """The parts of an object, without tensors; of a container that is too long, its length."""
    if isinstance(value, (Mapping, *_SEQUENCES)) and len(value) > _LONGEST:
        return (len(value),)
    for kinds, parts in _PARTS:
        if isinstance(value, kinds):
            return parts(value)
    return _attributes(value)


_PARTS: tuple[tuple[Any, Callable[[Any], Iterable[Any]]], ...] = (
    (Mapping, lambda mapping: itertools.chain.from_iterable(mapping.items())),
    (_SEQUENCES, lambda sequence: [part for part in sequence if not isinstance(part, Tensor)]),
    (types.FunctionType, lambda function: _closed_over(function)),
    (types.MethodType, lambda method: (method.__self__,)),
    (functools.partial, lambda partial: (partial.func, *partial.args, partial.keywords)),
    (itertools.count, lambda count: (repr(count),)),
)


def _closed_over(function: types.FunctionType) -> list[Any]:
    """Values of the variables of outer functions that a function refers to."""
    return [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]


def _attributes(value: Any) -> Iterable[Any]:
    """Names and values of the attributes of an object that a user's code may have made."""
    if not hasattr(value, "__dict__"):
        # an iterator of Python's own has no attributes, but a position
        return (operator.length_hint(value, -1),) if isinstance(value, Iterator) else ()
    library = type(value).__module__.partition(".")[0]
    closed = library in sys.stdlib_module_names and library not in _OPEN_LIBRARIES
    if isinstance(value, type) or closed or library == "torch":
        return ()
    return itertools.chain.from_iterable(vars(value).items())


class ChangeWatcher:
    """Compares some locations wherever a forward enters or leaves a module.

    `changes` are those by code that a graph does not repeat: errors with the innermost module whose code makes the
    change, or None for a global, since each process has its own.
    """

    def __init__(self, locations: Iterable[StateLocation], module: nn.Module) -> None:
        self._module = module
        self._held = {location: location.snapshot(module) for location in locations}
        self.changes: list[CannotEnterError] = []

    def compare(self, inside: nn.Module | None) -> None:
        """Takes what has changed since the last call for changes by `inside`; None: by a module called as a whole."""
        for location, before in self._held.items():
            after = location.snapshot(self._module)
            if after != before:
                self._held[location] = after
                if inside is not None:
                    reason = f"the forward changes Python state: it {location.described(self._module)}"
                    is_global = location.path is None and not location.is_generator
                    self.changes.append(CannotEnterError(None if is_global else inside, reason))
