"""Measurements: made in another process, and kept in the user's cache folder, each under all that it depends on."""

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch.multiprocessing import start_processes

from pipetrain import strict_json
from pipetrain.data.cache import cached_file, write_cached
from pipetrain.errors import ConfigError

T = TypeVar("T")
_DIGITS = 32


def remembered(
    kind: str, key: Mapping[str, Any], cache: str, read: Callable[[Any], T], measure: Callable[[], object]
) -> tuple[T, bool]:
    """A measurement, and True if an earlier command made it.

    Args:
        kind: beginning of the name of its file.
        key: everything that it depends on.
        cache: planner.cache.
        read: reads it from its JSON; a ConfigError counts as a damaged file.
        measure: makes it, as JSON.
    """
    text = json.dumps(key, sort_keys=True, default=str)
    path = cached_file(f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}.json")
    if cache == "use":
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, ConfigError):
            entry = strict_json.read(path)
            if entry["key"] == json.loads(text):
                return read(entry["measured"]), True
    measured = measure()
    if cache != "ignore":
        entry = {"key": json.loads(text), "measured": measured}
        write_cached(path, lambda file: file.write(json.dumps(entry, indent=1).encode() + b"\n"))
    return read(measured), False


def measure_in_subprocess(measure: Callable[..., object], *args: object) -> Any:
    """Result, as JSON, of a function that is called in another process.

    Raises:
        ConfigError: the function raised one.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        start_processes(_measure, args=(path, measure, args), nprocs=1, start_method="spawn")
        result = json.loads(path.read_text())
    if "error" in result:
        raise ConfigError(result["error"])
    return result["measured"]


def _measure(_rank: int, path: Path, measure: Callable[..., object], args: tuple[object, ...]) -> None:
    try:
        result = {"measured": measure(*args)}
    except ConfigError as error:
        result = {"error": str(error)}
    path.write_text(json.dumps(result))
