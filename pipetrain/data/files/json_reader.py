"""Dataclasses read from JSON."""

from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin

from pipetrain.engine.errors import ConfigError, is_whole
from pipetrain.engine.number_range import NOT_NEGATIVE

_NEEDED = {
    tuple: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number of at least 0",
    float: NOT_NEGATIVE,
}


def from_json(kind: Any, content: Any, where: str = "") -> Any:
    """A value of a type from its JSON.

    Args:
        kind: a dataclass, tuple, `X | None`, mapping, text, or number of at least 0. Absent fields of a dataclass keep
            their defaults, and further keys are ignored.
        content: as `json.loads` returns it.
        where: path of the content in its file, such as `layers.0.label`.

    Raises:
        ConfigError: the content is of another type, or lacks a field.
    """
    origin, members = get_origin(kind) or kind, get_args(kind)
    if origin is UnionType:
        return None if content is None else from_json(members[0], content, where)
    if origin is tuple and isinstance(content, list | tuple):
        kinds = members[:1] * len(content) if members[1:] == (...,) else members
        if len(kinds) == len(content):
            return tuple(from_json(kinds[i], value, f"{where}.{i}") for i, value in enumerate(content))
    elif is_dataclass(origin) and isinstance(content, dict):
        return _dataclass_of(kind, content, f"{where}." if where else "")
    elif _is_value(origin, content):
        return content
    raise ConfigError(f"{where or 'the content'}={content}: must be {_NEEDED.get(origin, 'an object')}")


def _dataclass_of(kind: Any, content: dict[str, Any], prefix: str) -> Any:
    values = {}
    for each in fields(kind):
        if each.name in content or (each.default is MISSING and each.default_factory is MISSING):
            values[each.name] = from_json(each.type, content.get(each.name), prefix + each.name)
    return kind(**values)


def _is_value(kind: type, content: Any) -> bool:
    if kind is int:
        return is_whole(content) and content >= 0
    return content in NOT_NEGATIVE if kind is float else isinstance(content, kind)
