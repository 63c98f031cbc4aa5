"""JSON as every reader takes it: a number that is not finite, such as a diverging evaluation's loss, is null."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipetrain.data.files.regular_file import text_of


def dumps(content: Any, indent: int | None = None) -> str:
    """The content as JSON; mappings, lists and tuples at any depth."""
    return json.dumps(_strict(content), indent=indent, allow_nan=False)


def loads(text: str | bytes) -> Any:
    """The content of JSON that may be damaged, or made to do harm.

    Raises:
        ValueError: it is not JSON, or nested deeper than any file that pipetrain writes.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read(path: Path) -> Any:
    """The content of a JSON file; raises as `loads`, and OSError if it cannot be read or is no regular file."""
    return loads(text_of(path))


def number(value: float | None) -> float:
    """A metric as it was read back: NaN where it was not finite."""
    return math.nan if value is None else value


def _strict(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {key: _strict(value) for key, value in content.items()}
    return [_strict(value) for value in content] if isinstance(content, list | tuple) else content
