"""The training and evaluation splits in what the target of a data set returns."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from pipetrain.data.interface import Split
from pipetrain.engine.errors import ConfigError

_EVALUATED = ("eval", "validation", "valid", "val", "dev", "test")
"""Usual names of a split to evaluate on; the first that there is is used."""


def data_object(returned: Any) -> Any:
    """An object with `train` and `eval`, made of a pair of splits or of a mapping such as a `datasets.DatasetDict`.

    Raises:
        ConfigError: one of the two splits is missing.
    """
    if hasattr(returned, "train") and hasattr(returned, "eval"):
        return returned
    if isinstance(returned, tuple | list) and len(returned) == 2:
        return SimpleNamespace(train=returned[0], eval=returned[1])
    if isinstance(returned, Mapping):
        return _object_of(returned)
    lacking = "eval" if hasattr(returned, "train") else "train"
    raise ConfigError(
        f"returned a {type(returned).__name__} without `{lacking}`; a data set has map-style `train` and `eval`, as "
        "attributes, as a (train, eval) pair, or in a dict"
    )


def _object_of(splits: Mapping[Any, Any]) -> Any:
    evaluated = next((name for name in _EVALUATED if name in splits), None)
    if "train" not in splits or evaluated is None:
        missing = "a split to evaluate on" if "train" in splits else "the split `train`"
        raise ConfigError(
            f"returned a {type(splits).__name__} of {', '.join(map(str, splits)) or 'nothing'}, without {missing}; "
            f"it needs `train` and one of {', '.join(_EVALUATED)}"
        )
    others = [str(name) for name in splits if name not in ("train", evaluated)]
    unused = f"; unused: {', '.join(others)}" if others else ""
    note = f"dataset: trains on the split `train` and evaluates on `{evaluated}`{unused}"
    return SimpleNamespace(train=splits["train"], eval=splits[evaluated], notes=[note])


def in_tensors(split: Any) -> Any:
    """The split; one of Hugging Face `datasets` without a format returns tensors in place of lists and images."""
    chosen = Split(split).format
    unset = isinstance(chosen, Mapping) and chosen.get("type", "") is None
    return split.with_format("torch") if unset else split


def class_names(split: Any, column: object) -> list[str] | None:
    """The names of the classes of a Hugging Face `ClassLabel` column; None for anything else."""
    features = Split(split).features
    label = features.get(column) if isinstance(features, Mapping) and isinstance(column, str) else None
    names = getattr(label, "names", None)
    return names if isinstance(names, list) else None
