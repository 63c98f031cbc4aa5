"""Objects that a Python program gives in place of targets: a model, a data set, a method, ..."""

import copy
import inspect
import io
import pickle
import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from typing_extensions import override

from pipetrain.engine.errors import ConfigError, one_line
from pipetrain.engine.failure import described
from pipetrain.runner.config.instantiate import OBJECT, Target
from pipetrain.runner.config.schema import OPEN_SECTIONS, TARGET, ModelConfig
from pipetrain.runner.config.settings import OF_EVERY_MODEL, Settings
from pipetrain.runner.config.suggestions import did_you_mean

SECTIONS = (
    "model", "dataset", "partition", "schedule", "method", "optimizer", "lr_schedule", "loss", "metrics", "callbacks",
)  # fmt: skip
"""Sections for which an object can be given; `metrics` takes a mapping of names to objects, `callbacks` a list."""
_COLLECTIONS: Mapping[str, tuple[Any, str]] = {
    "metrics": (Mapping, "a mapping of names to objects"),
    "callbacks": (list | tuple, "a list of objects"),
}
_FUNCTIONS = ("optimizer", "lr_schedule")
"""Sections that take a function, which is called with parameters or an optimizer."""
_NOT_COPIED = ("dataset", "callbacks")
_OF_NO_OBJECT = {each.name for each in fields(ModelConfig)}.difference(OF_EVERY_MODEL)
"""Options of a model that say what it must know of the data."""
_OF_ALL_METRICS = {"higher_is_better"}


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
            f"{section}={_name_of(value)}: cannot be sent to worker processes: {one_line(error)}; "
            "define it in a module that they can import, or use executor=simulated"
        ) from error
    return buffer.getvalue()


def _name_of(value: object) -> str:
    """Name of an object's class, or of a class or function itself."""
    kind: Any = value if isinstance(value, type | types.FunctionType) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def by_section(given: Mapping[str, Any]) -> dict[str, Any]:
    """The objects by section, such as `model` and `metrics.f1`, without those that are None.

    Raises:
        ConfigError: a name is not a section, or an object has the wrong type.
    """
    objects: dict[str, Any] = {}
    for name, value in given.items():
        if name not in SECTIONS:
            hint = did_you_mean(name, SECTIONS) or f"; choose from {', '.join(SECTIONS)}"
            raise ConfigError(f"{name}=...: not a section that takes an object{hint}")
        kind, wanted = _COLLECTIONS.get(name, (object, "an object"))
        if isinstance(value, str) or not isinstance(value, kind | None):
            raise ConfigError(f"{name}={value!r}: must be {wanted}; choices and settings are words: '{name}=...'")
        objects |= _named(name, value)
    return {name: value for name, value in objects.items() if value is not None}


def _named(name: str, value: Any) -> dict[str, Any]:
    if name == "metrics":
        return {f"metrics.{key}": each for key, each in (value or {}).items()}
    if name == "callbacks":
        return {f"callbacks[{number}]": each for number, each in enumerate(value or ())}
    return {name: value}


def custom_choices(objects: Mapping[str, Any], chosen: Collection[str]) -> list[str]:
    """Words such as `model=custom`, for objects whose group is not among the chosen ones, whose defaults they keep."""
    groups = (name for name in objects if name != "partition" and not name.startswith(tuple(_COLLECTIONS)))
    return [f"{group}=custom" for group in groups if group not in chosen]


def put_into(config: DictConfig, objects: Mapping[str, Any], named: Collection[str]) -> None:
    """Puts the names of the objects' classes in place of targets, and of their options that are not `named`."""
    targets = {section: {TARGET: f"{OBJECT}{_name_of(value)}"} for section, value in objects.items()}
    own = [target for section, target in targets.items() if section.startswith("callbacks")]
    config.callbacks = [*own, *config.callbacks]  # first, as their numbers refer to the objects
    for section, target in targets.items():
        group, _, metric = section.partition(".")
        if group.startswith("callbacks") or (not metric and TARGET not in list(config[group])):
            continue  # a preset of phases has its own targets
        former = config[group].get(metric) if metric else config[group]
        OmegaConf.update(
            config, section, {**_kept(section, former or {}, named), **target}, merge=False, force_add=True
        )


def _kept(section: str, former: Mapping[Any, Any], named: Collection[str]) -> dict[Any, Any]:
    """What stays of a section whose target an object replaces: settings of every target, and what words set."""
    of_all = {each.name for each in fields(OPEN_SECTIONS[section])} if section in OPEN_SECTIONS else _OF_ALL_METRICS
    given = {name for name in former if f"{section}.{name}" in named}
    reset = _OF_NO_OBJECT - given if section == "model" else set()
    return {name: None if name in reset else former[name] for name in former if name in (of_all | given) - {TARGET}}


def with_objects(settings: Settings, objects: Mapping[str, Any]) -> Settings:
    """The settings, with objects in the place of the targets of their sections.

    Raises:
        ConfigError: no phase takes the schedule or method.
    """
    left = set(objects)

    def given(value: Any) -> Any:
        if isinstance(value, Target):
            of_phases = value.section in ("schedule", "method") and not value.path.startswith(OBJECT)
            if value.section not in objects or of_phases:
                return value
            left.discard(value.section)
            found = objects[value.section]
            return GivenObject(value.section, f"{OBJECT}{_name_of(found)}", value.options, found)
        if isinstance(value, tuple):
            return tuple(map(given, value))
        if isinstance(value, dict):
            return {name: given(each) for name, each in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{each.name: given(getattr(value, each.name)) for each in fields(value)})
        return value

    result: Settings = given(settings)
    if left:
        unused = ", ".join(sorted(left))
        raise ConfigError(f"{unused}: every phase in `phases` has its own; leave out this object or the phases")
    return result
