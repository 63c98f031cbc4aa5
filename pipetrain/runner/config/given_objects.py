"""Objects that a Python program gives in place of targets: a model, a data set, a method, ..."""

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.instantiate import OBJECT, GivenObject, Target, name_of
from pipetrain.runner.config.messages import CUSTOM
from pipetrain.runner.config.schema import OPEN_SECTIONS, TARGET, ModelConfig
from pipetrain.runner.config.settings import OF_EVERY_MODEL, Settings
from pipetrain.runner.config.suggestions import did_you_mean

SECTIONS = (
    "model", "dataset", "partition", "schedule", "method", "optimizer", "lr_schedule", "loss", "metrics", "callbacks",
    "messages",
)  # fmt: skip
"""Sections for which an object can be given; some take a mapping of names to objects, or a list."""
_COLLECTIONS: Mapping[str, tuple[Any, str]] = {
    "metrics": (Mapping, "a mapping of names to objects"),
    "callbacks": (list | tuple, "a list of objects"),
    "messages": (Mapping, "a mapping of activations, gradients or both to objects"),
}
_OF_NO_OBJECT = {each.name for each in fields(ModelConfig)}.difference(OF_EVERY_MODEL)
"""Options of a model that say what it must know of the data."""
_OF_ALL_METRICS = {"higher_is_better"}


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
    if name in ("metrics", "messages"):
        return {f"{name}.{key}": each for key, each in (value or {}).items()}
    if name == "callbacks":
        return {f"callbacks[{number}]": each for number, each in enumerate(value or ())}
    return {name: value}


def custom_choices(objects: Mapping[str, Any], chosen: Collection[str]) -> list[str]:
    """Words such as `model=custom`, for objects whose group is not among the chosen ones, whose defaults they keep."""
    groups = (name for name in objects if name != "partition" and not name.startswith(tuple(_COLLECTIONS)))
    return [f"{group}=custom" for group in groups if group not in chosen]


def put_into(config: DictConfig, objects: Mapping[str, Any], named: Collection[str]) -> None:
    """Puts the names of the objects' classes in place of targets, and of their options that are not `named`."""
    targets = {section: {TARGET: f"{OBJECT}{name_of(value)}"} for section, value in objects.items()}
    own = [target for section, target in targets.items() if section.startswith("callbacks")]
    config.callbacks = [*own, *config.callbacks]  # first, as their numbers refer to the objects
    for section, target in targets.items():
        group, _, metric = section.partition(".")
        if group.startswith("callbacks") or (not metric and TARGET not in list(config[group])):
            continue  # a preset of phases has its own targets
        kept = _kept(section, (config[group].get(metric) if metric else config[group]) or {}, named)
        chosen = {**target, "name": CUSTOM} if group == "messages" else target
        OmegaConf.update(config, section, {**kept, **chosen}, merge=False, force_add=True)


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
            return GivenObject(value.section, f"{OBJECT}{name_of(found)}", value.options, found)
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
