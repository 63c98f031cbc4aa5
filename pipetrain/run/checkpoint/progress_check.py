"""Validation of a checkpoint's progress, which may have been edited or written by another program."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pipetrain.errors import is_whole


class _Kind(NamedTuple):
    """Type of a field: a test of its value, and the message if it fails."""

    holds: Callable[[Any], bool]
    otherwise: str


def _is_count(value: object) -> bool:
    return is_whole(value) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_mapping(value: object) -> bool:
    return isinstance(value, dict)


def _or_null(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


def _mapping_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(holds, value.values()))


def _list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(holds, value))


_COUNT = _Kind(_is_count, "not a number of steps")
_TEXT = _Kind(_is_text, "not text")
_SECONDS = _Kind(_is_number, "not a number of seconds")
_NAMES = _Kind(_mapping_of(_is_text), "not a mapping of names")
_METRICS = _Kind(_mapping_of(_or_null(_is_number)), "not a mapping of metrics")  # null: it was not finite
_COUNTS = _Kind(_mapping_of(_is_count), "not a mapping of numbers")
_REQUIRED = {"step": _COUNT, "model": _TEXT, "dataset": _TEXT}
_OPTIONAL = {
    "steps_per_epoch": _Kind(lambda value: _is_count(value) and value > 0, "not a number of steps"),
    "vocabulary_sha256": _Kind(_or_null(_is_text), "not text"),
    "target": _Kind(_or_null(_is_mapping), "not a mapping"),
    "target_wanted": _Kind(_or_null(_mapping_of(_is_number)), "not a mapping of metrics"),
    "per_stage": _Kind(_list_of(_is_mapping), "not a list of stages"),
    "extra_drains": _Kind(_list_of(_is_count), "not a list of steps"),
    "metrics": _METRICS,
    "final": _METRICS,
    "best": _METRICS,
    "best_step": _COUNTS,
    "best_epoch": _COUNTS,
    "evaluation_due": _Kind(lambda value: isinstance(value, bool), "neither true nor false"),
    "aliases": _NAMES,
    "untied": _NAMES,
    "wall_s": _SECONDS,
    "eval_s": _SECONDS,
    "checkpoint_s": _SECONDS,
}
"""Fields that a checkpoint of an older version may lack."""


def progress_fault(progress: Any) -> str | None:
    """Fault of the progress, as the continuation of `damaged:`; None if it is valid."""
    if not isinstance(progress, Mapping):
        return "it holds no fields"
    if missing := [name for name in _REQUIRED if name not in progress]:
        return f"it has no {missing[0]}"
    for name, kind in {**_REQUIRED, **_OPTIONAL}.items():
        if name in progress and not kind.holds(progress[name]):
            return f"its {name} is {kind.otherwise}"
    return None
