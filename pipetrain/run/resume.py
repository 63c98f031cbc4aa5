"""The checkpoint that the setting `resume` asks for."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.run import checkpoint
from pipetrain.tracking import summary
from pipetrain.tracking.run_directory import RunDirectory

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_MAY_DIFFER = ("resume", "debug", "log", "launch", "checkpoint", "eval", "executor", "partition")
"""Settings that do not change what is computed, or that a checkpoint does not depend on."""


def checkpoint_to_resume(settings: Settings, run: RunDirectory) -> Path | None:
    """The checkpoint to continue from; None for a fresh start.

    `auto` looks in this run's own directory, then beside it for the newest with an identical configuration.

    Raises:
        ConfigError: the named run has no checkpoint, or trained another model or on another data set.
    """
    if settings.resume is None:
        return None
    folder = _automatic(settings, run) if settings.resume == "auto" else checkpoint.find(settings.resume)
    if folder is not None:
        progress = checkpoint.load_progress(folder)
        for name in ("model", "dataset"):
            if progress[name] != (chosen := settings.choices[name]):
                raise ConfigError(
                    f"resume={settings.resume}: was trained with {name}={progress[name]}, but this run has "
                    f"{name}={chosen}"
                )
    return folder


def _automatic(settings: Settings, run: RunDirectory) -> Path | None:
    # the default directories are outputs/DATE/TIME
    day = run.path.parent
    days = day.parent.glob("????-??-??") if _DATE.fullmatch(day.name) else [day]
    siblings = (RunDirectory(path) for each in days for path in each.glob("*"))
    newest_first = sorted((each for each in siblings if each.config.is_file()), key=_modified, reverse=True)
    for candidate in (run, *newest_first):
        complete = checkpoint.checkpoints(candidate.path)
        if complete and (candidate == run or _continues(candidate, settings)):
            return complete[-1].resolve()
    return None


def _modified(run: RunDirectory) -> float:
    return run.config.stat().st_mtime


def _continues(candidate: RunDirectory, settings: Settings) -> bool:
    result = summary.read(candidate)
    if result is not None and result["status"] == "completed":
        return False
    stored = OmegaConf.to_container(OmegaConf.load(candidate.config))
    assert isinstance(stored, dict)
    return _comparable(stored) == _comparable(settings.stored)


def _comparable(config: Mapping[Any, Any]) -> str:
    return json.dumps({key: value for key, value in config.items() if key not in _MAY_DIFFER}, sort_keys=True)
