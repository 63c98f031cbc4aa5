"""A class or function that the configuration names by its path, and what it returns."""

import inspect
import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter
from types import ModuleType
from typing import Any, Literal, Self, Union, get_args, get_origin

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import MISSING
from omegaconf.errors import MissingMandatoryValue

from pipetrain.config.schema import TARGET
from pipetrain.config.suggestions import did_you_mean, nearest_names
from pipetrain.errors import ConfigError, as_configured, is_whole, one_line
from pipetrain.failure import described
from pipetrain.libraries import torchvision_import

_MISSING = re.compile(r"missing \d+ required [a-z-]+ arguments?: (.+)")
_OWN_CLASSES = {
    "schedule": "; schedule=custom brings no settings",
    "method": "; method=custom brings no settings",
    "lr_schedule": "; a subclass of pipetrain.LearningRateSchedule takes unit and warmup",
}


@dataclass(frozen=True)
class Target:
    """An open section of the configuration: a class or function, ours or the user's own, and its options.

    Attributes:
        section: where it stands in the configuration, such as `model`.
        path: of the class or function, such as `mylib.build`.
        options: the keyword arguments that the configuration gives.
    """

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
            raise ConfigError(f"{section}={dict(content)}: names no class; {section}.{TARGET} is missing")
        return cls(section, content[TARGET], {key: value for key, value in content.items() if key != TARGET})

    def build(self, *args: Any, **extra: Any) -> Any:
        """Calls the target with its options and the `extra` ones, and returns the result.

        Raises:
            ConfigError: the target does not exist, does not take these options, or refuses one.
            MissingMandatoryValue: an option has no default and is not given.
        """
        self._check_given({**self.options, **extra})
        self.check()
        try:
            return instantiate({TARGET: self.path, **self.options, **extra}, *args, _convert_="all")
        except InstantiationException as error:
            cause = error.__cause__
            if isinstance(cause, ConfigError):
                raise cause from None
            reason = described(cause) if cause is not None else one_line(error)
            if missing := self._missing(cause):
                settings = " ".join(f"{self.section}.{name}=VALUE" for name in missing)
                reason = f"needs {' and '.join(missing)}, which its signature does not name; set {settings}"
            raise ConfigError(f"{self.section}.{TARGET}={self.path}: {reason}") from error

    def _missing(self, error: BaseException | None) -> list[str]:
        """Names of missing arguments in an error, if the signature hides them behind `**`."""
        signature = _signature(self._located())
        hides = signature is not None and any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
        said = _MISSING.search(str(error)) if isinstance(error, TypeError) and hides else None
        return re.findall(r"'(\w+)'", said[1]) if said else []

    def _check_given(self, options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            if isinstance(value, str) and value == MISSING:
                error = MissingMandatoryValue(f"{self.section}.{name} is not set")
                error.full_key = f"{self.section}.{name}"
                raise error

    def wrong_type_error(self, found: object, wanted: str) -> ConfigError:
        """The error of a target that returns something else than it should."""
        return ConfigError(f"{self.section}.{TARGET}={self.path}: returned {type(found).__name__}, not {wanted}")

    def check(self) -> None:
        """Checks that the target exists and takes all options, and that their values match its annotations.

        Raises:
            ConfigError: it does not.
        """
        signature = _signature(self._located())
        if signature is None:
            return
        for name, value in self.options.items():
            if wrong := self._problem(signature, name, value):
                raise ConfigError(f"{self.section}.{name}={as_configured(value)}: {wrong}")

    def parameters(self, *, required: bool = False) -> list[str]:
        """Names of the target's parameters; with `required` only of those without a default.

        Raises:
            ConfigError: the target does not exist.
        """
        signature = _signature(self._located())
        if signature is None:
            return []
        defaults = {name: signature.parameters[name].default for name in _by_name(signature)}
        return [name for name, default in defaults.items() if not required or default is inspect.Parameter.empty]

    def annotation(self, name: str) -> Any:
        """Annotation of the parameter that takes this option; None if unknown.

        Raises:
            ConfigError: the target does not exist.
        """
        signature = _signature(self._located())
        return None if signature is None or name not in _by_name(signature) else signature.parameters[name].annotation

    def _problem(self, signature: inspect.Signature, name: str, value: object) -> str | None:
        taken = _by_name(signature)
        if name in taken:
            return annotation_problem(signature.parameters[name], value)
        open_to_all = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
        if open_to_all or name.startswith("_"):  # those are Hydra's own
            return None
        return f"{self.path} has no such parameter{self._suggestion(name, taken)}{self._without_settings()}"

    def _suggestion(self, name: str, taken: Sequence[str]) -> str:
        meant = did_you_mean(f"{self.section}.{name}", [f"{self.section}.{each}" for each in taken])
        return meant or f"; it takes {', '.join(taken) or 'none'}"

    def _without_settings(self) -> str:
        """Hint for a user's class that does not take the settings of the choice it replaces."""
        if self.path.startswith("pipetrain."):
            return ""
        return _OWN_CLASSES.get(self.section, "")

    def _located(self) -> Any:
        torchvision_import.install()  # a user's own code may import torchvision whenever it likes
        try:
            return _found(self.path)
        except ModuleNotFoundError as error:
            if error.name and f"{self.path}.".startswith(f"{error.name}."):
                raise ConfigError(f"{self.section}.{TARGET}={self.path}: {_absent(error.name)}") from error
            raise ConfigError(f"{self.section}.{TARGET}={self.path}: {described(error)}") from error
        except Exception as error:
            raise ConfigError(f"{self.section}.{TARGET}={self.path}: {described(error)}") from error


def _found(path: str) -> Any:
    """The object that the path names; imports the modules on the way."""
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
    if name == "torchmetrics":
        return 'torchmetrics is not installed; `pip install "pipetrain[metrics]"`'
    return f"there is no module {name}; is its folder on PYTHONPATH?"


def _signature(target: Any) -> inspect.Signature | None:
    """Signature of a target, with annotations that are text evaluated if possible; None if it has none."""
    try:
        try:
            return inspect.signature(target, eval_str=True)
        except Exception:  # whatever becomes of the text
            return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def _by_name(signature: inspect.Signature) -> list[str]:
    """The parameters that may be given by name."""
    parameters = signature.parameters.values()
    return [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]


_PLAIN = {bool: "true or false", int: "a whole number", float: "a number"}
_FLAGS = {"yes": True, "on": True, "y": True, "1": True, "no": False, "off": False, "n": False, "0": False}


def annotation_problem(parameter: Parameter, value: object) -> str | None:
    """Problem of a value and what would work; None if there is no problem, or it cannot be determined.

    Looked at are `bool`, `int`, `float`, `Literal`, and unions of these. `None` stands for what is not set yet, and a
    mapping for an object that is still to be built. An annotation that its own default contradicts says nothing.
    """
    kinds, default = _members(parameter.annotation), parameter.default
    honest = default is None or default is Parameter.empty or _take(kinds, default)
    if value is None or isinstance(value, Mapping) or not honest or _take(kinds, value):
        return None
    good = [as_configured(each) for kind in kinds for each in _near(kind, value)]
    meant = f"; did you mean {good[0]}?" if good else ""
    return f"{' or '.join(map(_words, kinds))} is needed{meant}"


def _members(annotation: Any) -> list[Any]:
    """Members of a union, without None; else the annotation alone."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return [annotation]
    return [kind for kind in get_args(annotation) if kind is not type(None)]


def _take(kinds: list[Any], value: object) -> bool:
    return any(_takes(kind, value) for kind in kinds)


def _takes(kind: Any, value: object) -> bool:
    if get_origin(kind) is Literal:
        return any(each == value and type(each) is type(value) for each in get_args(kind))
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return is_whole(value)
    return kind is not float or is_whole(value) or isinstance(value, float)


def _words(kind: Any) -> str:
    return f"one of {', '.join(map(as_configured, get_args(kind)))}" if get_origin(kind) is Literal else _PLAIN[kind]


def _near(kind: Any, value: object) -> list[object]:
    """The values of a kind that are most like one that it does not take; empty if there are none."""
    if get_origin(kind) is Literal:
        return [*nearest_names(str(value), [str(each) for each in get_args(kind)])]
    if kind is bool:
        return [_FLAGS[word]] if (word := str(value).lower()) in _FLAGS else []
    return [round(value)] if kind is int and isinstance(value, float) and abs(value) < 2**63 else []
