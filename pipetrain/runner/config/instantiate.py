"""A class or function that the configuration names by its path, and what it returns."""

import inspect
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter
from types import ModuleType
from typing import Any, Literal, Self, Union, get_args, get_origin

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import MISSING
from omegaconf.errors import MissingMandatoryValue

from pipetrain.engine.errors import ConfigError, as_configured, is_whole, one_line
from pipetrain.engine.failure import described
from pipetrain.engine.libraries import torchvision_import
from pipetrain.runner.config.schema import TARGET
from pipetrain.runner.config.suggestions import did_you_mean

OBJECT = "object:"
"""Begins the path of a section for which a Python program gave an object; the name of its class follows."""


@dataclass(frozen=True)
class Target:
    """An open section of the configuration, such as `model`: the path of a class or function, and keyword arguments."""

    section: str
    path: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, section: str, content: Mapping[str, Any]) -> Self:
        """The target that a section names.

        Raises:
            ConfigError: it names none.
        """
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
        """The parameters that may be given by name; with `required` only those without a default.

        Raises:
            ConfigError: the target does not exist.
        """
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
