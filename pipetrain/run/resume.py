"""Which checkpoint `resume` names."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.run import checkpoint
from pipetrain.tracking import summary as summaries
from pipetrain.tracking.run_directory import RunDirectory

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_MAY_DIFFER = ("resume", "debug", "log", "launch", "checkpoint", "eval", "executor", "partition")
"""Settings that do not change what is computed, or that a checkpoint does not depend on."""


def checkpoint_to_resume(settings: Settings, run: RunDirectory) -> Path | None:
    """The checkpoint that `resume=RUN` or `resume=auto` asks for, None for a fresh start.

    `auto` looks into this run's own directory, then into those beside it for the newest with an equal configuration.

    Raises:
        ConfigError: a named run has no checkpoint, or holds another model.
    """
    if settings.resume is None:
        return None
    folder = _automatic(settings, run) if settings.resume == "auto" else checkpoint.find(settings.resume)
    if folder is not None:
        progress = checkpoint.load_progress(folder)
        for name in ("model", "dataset"):
            if progress[name] != (ours := settings.choices[name]):
                raise ConfigError(f"resume={settings.resume}: holds {name}={progress[name]}, this run {ours}")
    return folder


def _automatic(settings: Settings, run: RunDirectory) -> Path | None:
    # the default directories are outputs/DATE/TIME
    day = run.path.parent
    days = day.parent.glob("????-??-??") if _DATE.fullmatch(day.name) else [day]
    beside = (RunDirectory(path) for each in days for path in each.glob("*"))
    others = sorted((other for other in beside if other.config.is_file()), key=_age)
    for candidate in (run, *others):
        complete = checkpoint.checkpoints(candidate.path)
        if complete and (candidate == run or _continues(candidate, settings)):
            return complete[-1].resolve()
    return None


def _age(run: RunDirectory) -> float:
    return -run.config.stat().st_mtime


def _continues(candidate: RunDirectory, settings: Settings) -> bool:
    summary = summaries.read(candidate)
    if summary is not None and summary["status"] == "completed":
        return False
    stored = OmegaConf.to_container(OmegaConf.load(candidate.config))
    assert isinstance(stored, dict)
    return _comparable(stored) == _comparable(settings.stored)


def _comparable(config: Mapping[Any, Any]) -> str:
    return json.dumps({key: value for key, value in config.items() if key not in _MAY_DIFFER}, sort_keys=True)
