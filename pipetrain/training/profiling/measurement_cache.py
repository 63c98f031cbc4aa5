"""Measurements: made in another process, and kept in the user's cache folder, each under all that it depends on."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.multiprocessing import start_processes

from pipetrain.data.cache import cached_file, write_cached
from pipetrain.errors import ConfigError

_DIGITS = 32


@dataclass(frozen=True)
class Measurement:
    """A measurement, identified by everything that it depends on.

    Attributes:
        key: everything that it depends on, as JSON.
    """

    path: Path
    key: Mapping[str, Any]

    @classmethod
    def of(cls, kind: str, key: Mapping[str, Any]) -> "Measurement":
        """The measurement of this kind and key, made already or not."""
        text = json.dumps(key, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
        return cls(cached_file(f"{kind}-{digest}.json"), json.loads(text))

    def load(self) -> Any:
        """Stored measurement; None if there is none or its file is damaged."""
        try:
            entry = json.loads(self.path.read_text(encoding="utf-8"))
            return entry["measured"] if entry["key"] == self.key else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def store(self, measured: Any) -> None:
        """Stores the measurement, if the cache folder has room for it."""
        text = json.dumps({"key": self.key, "measured": measured}, indent=1) + "\n"
        write_cached(self.path, lambda file: file.write(text.encode()))


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
