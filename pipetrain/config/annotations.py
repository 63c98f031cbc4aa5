"""Values held against the annotation of the parameter that they are for, as far as it is a plain one."""

import types
from collections.abc import Mapping
from inspect import Parameter
from typing import Any, Literal, Union, get_args, get_origin

from pipetrain.config.likeness import nearest
from pipetrain.errors import as_configured, is_whole

_PLAIN = {bool: "true or false", int: "a whole number", float: "a number"}
_FLAGS = {"yes": True, "on": True, "y": True, "1": True, "no": False, "off": False, "n": False, "0": False}


def problem(parameter: Parameter, value: object) -> str | None:
    """What is wrong with a value, and what would work; None where nothing is, or nobody can tell.

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
    """Those of a union, without None; else the annotation alone."""
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
    """The values of a kind that are most like one that it does not take; none where nothing is."""
    if get_origin(kind) is Literal:
        return [*nearest(str(value), [str(each) for each in get_args(kind)])]
    if kind is bool:
        return [_FLAGS[word]] if (word := str(value).lower()) in _FLAGS else []
    return [round(value)] if kind is int and isinstance(value, float) and abs(value) < 2**63 else []
