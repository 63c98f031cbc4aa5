"""A process that measures, and ends before the workers of a run begin: it leaves no memory behind on a device."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.multiprocessing import start_processes

from pipetrain.errors import ConfigError


def measured_apart(measure: Callable[..., object], *args: object) -> Any:
    """What a function returns in a process of its own, as JSON has it.

    Args:
        measure: a function of a module.
        args: what it is given.

    Raises:
        ConfigError: it raised one.
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
