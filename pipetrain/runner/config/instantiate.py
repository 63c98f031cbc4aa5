"""What stands in an open section: a class or function that its path names, or an object of a Python program."""

import copy
import inspect
import io
import pickle
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import Parameter
from types import ModuleType
from typing import Any, Literal, Self, Union, get_args, get_origin

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import MISSING
from omegaconf.errors import MissingMandatoryValue
from typing_extensions import override

from pipetrain.data.libraries import torchvision_import
from pipetrain.engine.errors import ConfigError, as_configured, is_whole, one_line
from pipetrain.engine.failure import described
from pipetrain.runner.config.schema import TARGET
from pipetrain.runner.config.suggestions import did_you_mean

OBJECT = "object:"
"""Begins the path of a section for which a Python program gave an object; the name of its class follows."""


@contextmanager
def naming(setting: str) -> Iterator[None]:
    """Puts a setting before the message of a ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from error


@dataclass(frozen=True)
class Target:
    """An open section of the configuration, such as `model`: the path of a class or function, and keyword arguments.

    What looks at the class or function raises a ConfigError if there is none.
    """

    section: str
    path: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, section: str, content: Mapping[str, Any]) -> Self:
        """The target that a section names; raises a ConfigError if it names none."""
        if TARGET not in content:
            raise ConfigError(f"{section}={dict(content)}: {section}.{TARGET} is not set")
        if not isinstance(path := content[TARGET], str):
            raise ConfigError(f"{section}.{TARGET}={as_configured(path)}: must be a path such as package.module.Name")
        return cls(section, path, {key: value for key, value in content.items() if key != TARGET})

    @property
    def setting(self) -> str:
        """The target as error messages name it."""
        if self.path.startswith(OBJECT):
            return f"{self.section}={self.path.removeprefix(OBJECT)}"
        return f"{self.section}.{TARGET}={self.path}"

    def build(self, *args: Any, **extra: Any) -> Any:
        """Calls the target with its options and the `extra` ones, and returns the result.

        Raises:
            ConfigError: the target does not exist, does not take these options, or refuses one.
            MissingMandatoryValue: an option has no default and is not given.
        """
        for name, value in {**self.options, **extra}.items():
            if isinstance(value, str) and value == MISSING:
                error = MissingMandatoryValue(f"{self.section}.{name} is not set")
                error.full_key = f"{self.section}.{name}"
                raise error
        self.check()
        try:
            return instantiate({TARGET: self.path, **self.options, **extra}, *args, _convert_="all")
        except InstantiationException as error:
            cause = error.__cause__
            if isinstance(cause, ConfigError):
                raise cause from None
            raise ConfigError(f"{self.setting}: {described(cause) if cause else one_line(error)}") from error

    def wrong_type_error(self, found: object, wanted: str) -> ConfigError:
        """The error of a target that returns something else than it should."""
        return ConfigError(f"{self.setting}: returned {type(found).__name__}, not {wanted}")

    def naming(self) -> AbstractContextManager[None]:
        """Puts the setting before the message of a ConfigError."""
        return naming(self.setting)

    def check(self) -> None:
        """Raises a ConfigError unless the target exists and takes all options, with values of its annotations."""
        taken, is_open = self.parameters(), self._is_open()
        for name, value in self.options.items():
            wrong = None
            if name in taken:
                wrong = annotation_problem(taken[name], value)
            elif not is_open and not name.startswith("_"):  # those are Hydra's own
                meant = did_you_mean(f"{self.section}.{name}", [f"{self.section}.{each}" for each in taken])
                known = meant or f"; it takes {', '.join(taken) or 'none'}"
                wrong = f"{self.path.removeprefix(OBJECT)} has no such parameter{known}"
            if wrong:
                raise ConfigError(f"{self.section}.{name}={as_configured(value)}: {wrong}")

    def parameters(self, *, required: bool = False) -> dict[str, Parameter]:
        """The parameters that may be given by name; with `required` only those without a default."""
        kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        named = {name: each for name, each in self._signature().parameters.items() if each.kind in kinds}
        return {name: each for name, each in named.items() if not required or each.default is Parameter.empty}

    def takes(self, name: str) -> bool:
        """True if an option of this name may be given."""
        return name in self.parameters() or self._is_open()

    def _is_open(self) -> bool:
        """True if the target takes options of any name."""
        return any(each.kind is Parameter.VAR_KEYWORD for each in self._signature().parameters.values())

    def _signature(self) -> inspect.Signature:
        """Signature of the target, with annotations that are text evaluated if possible; open if it has none."""
        target = self.located()
        try:
            try:
                return inspect.signature(target, eval_str=True)
            except Exception:  # any error of the text
                return inspect.signature(target)
        except (TypeError, ValueError):
            return inspect.Signature([Parameter("options", Parameter.VAR_KEYWORD)])

    def located(self) -> Any:
        """The class or function itself.

        Raises:
            ConfigError: it does not exist, or the run was given an object in its place.
        """
        if self.path.startswith(OBJECT):
            raise ConfigError(
                f"{self.setting}: a Python program gave this object to the run, whose files do not contain it; "
                f"in Python, pass it again: pipetrain.load(RUN, {self.section.partition('.')[0]}=...)"
            )
        torchvision_import.install()  # a user's own code may import torchvision whenever it likes
        try:
            return _object_at(self.path)
        except ModuleNotFoundError as error:
            if error.name and f"{self.path}.".startswith(f"{error.name}."):
                raise ConfigError(f"{self.setting}: {_absent(error.name)}") from error
            raise ConfigError(f"{self.setting}: {described(error)}") from error
        except Exception as error:
            raise ConfigError(f"{self.setting}: {described(error)}") from error


def _object_at(path: str) -> Any:
    names = path.split(".")
    found = import_module(names[0])
    for count, name in enumerate(names[1:], 2):
        if isinstance(found, ModuleType) and not hasattr(found, name):
            found = import_module(".".join(names[:count]))
        else:
            found = getattr(found, name)
    return found


def _absent(name: str) -> str:
    """The message for a module, or a name in one, that does not exist."""
    module, _, last = name.rpartition(".")
    if module in sys.modules:
        return f"{module} has no {last}{did_you_mean(last, vars(sys.modules[module]))}"
    if name == "???":
        return "is not set; give the path of a class or function, such as mylib.Name"
    if name == "torchmetrics":
        return 'torchmetrics is not installed; `pip install "pipetrain[metrics]"`'
    return f"no module named {name}; is its folder on PYTHONPATH?"


_PLAIN = {bool: "true or false", int: "a whole number", float: "a number"}


def annotation_problem(parameter: Parameter, value: object) -> str | None:
    """What a value must be instead; None if it fits the annotation, or this cannot be determined.

    Annotations that are `bool`, `int`, `float`, `Literal`, or unions of these are checked, unless the default
    contradicts them. `None` is a value that is not set yet, and a mapping an object that is still to be built.
    """
    annotation, default = parameter.annotation, parameter.default
    is_union = get_origin(annotation) in (Union, types.UnionType)
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)] if is_union else [annotation]
    if value is None or isinstance(value, Mapping) or any(_takes(kind, value) for kind in kinds):
        return None
    if default is not None and default is not Parameter.empty and not any(_takes(kind, default) for kind in kinds):
        return None
    works = (
        f"one of {', '.join(map(as_configured, get_args(kind)))}" if get_origin(kind) is Literal else _PLAIN[kind]
        for kind in kinds
    )
    return f"must be {' or '.join(works)}"


def _takes(kind: Any, value: object) -> bool:
    if get_origin(kind) is Literal:
        return any(each == value and type(each) is type(value) for each in get_args(kind))
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return is_whole(value)
    return kind is not float or is_whole(value) or isinstance(value, float)


_FUNCTIONS = ("optimizer", "lr_schedule")
"""Sections that take a function, which is called with parameters or an optimizer."""
_NOT_COPIED = ("dataset", "callbacks")


@dataclass(frozen=True)
class GivenObject(Target):
    """An object in place of a target. `build` returns a copy, but of data sets and callbacks the object itself.

    Of an optimizer or a learning-rate schedule it returns the result of the function that was given.

    Attributes:
        value: the object.
    """

    value: Any = field(default=None, compare=False, repr=False)

    @override
    def build(self, *args: Any, **extra: Any) -> Any:
        self.check()
        try:
            value = self.located()
            if args:
                options = {**self.options, **extra}
                return value(*args, **{name: each for name, each in options.items() if self.takes(name)})
            return value if self.section.startswith(_NOT_COPIED) else copy.deepcopy(value)
        except ConfigError:
            raise
        except Exception as error:  # of the object's own code
            raise ConfigError(f"{self.setting}: {described(error)}") from error

    @override
    def wrong_type_error(self, found: object, wanted: str) -> ConfigError:
        return ConfigError(f"{self.setting}: {type(found).__name__} is not {wanted}")

    @override
    def check(self) -> None:
        # every optimizer has a rate, which pipetrain itself sets
        options = {name: each for name, each in self.options.items() if (self.section, name) != ("optimizer", "lr")}
        Target.check(replace(self, options=options))

    @override
    def _signature(self) -> inspect.Signature:
        if self.section in _FUNCTIONS and callable(self.located()):
            return super()._signature()
        return inspect.Signature()  # it is made already

    @override
    def located(self) -> Any:
        return pickle.loads(self.value.content) if isinstance(self.value, _Pickled) else self.value

    @override
    def __getstate__(self) -> dict[str, Any]:
        """With the object pickled apart: another process gets a copy of its tensors, and does not share them."""
        value = self.value if isinstance(self.value, _Pickled) else _Pickled(pickled(self.section, self.value))
        return {**vars(self), "value": value}


@dataclass(frozen=True)
class _Pickled:
    content: bytes


class _Pickler(pickle.Pickler):
    """Refuses the main program's own classes and functions, which no other process imports."""

    @override
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | types.FunctionType) and obj.__module__ == "__main__":
            raise pickle.PicklingError(f"{obj.__qualname__} is defined in the main script or a notebook")
        return NotImplemented


def pickled(section: str, value: Any) -> bytes:
    """An object of a section, for other processes.

    Raises:
        ConfigError: it cannot be pickled, or they could not import its class.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except Exception as error:  # of the object's own code
        raise ConfigError(
            f"{section}={name_of(value)}: cannot be sent to worker processes: {one_line(error)}; "
            "define it in a module that they can import, or use executor=simulated"
        ) from error
    return buffer.getvalue()


def name_of(value: object) -> str:
    """Name of an object's class, or of a class or function itself."""
    kind: Any = value if isinstance(value, type | types.FunctionType) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
