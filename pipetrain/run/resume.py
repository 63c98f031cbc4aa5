"""Which checkpoint `resume` names."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipetrain.errors import ConfigError
from pipetrain.run import checkpoint
from pipetrain.tracking import summary as summaries

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_MAY_DIFFER = ("resume", "debug", "log", "launch", "checkpoint", "eval", "executor", "partition")
"""Settings that do not change what is computed, or that a checkpoint does not depend on."""


def checkpoint_to_resume(config: Mapping[str, Any], names: Mapping[str, str], run: Path) -> Path | None:
    """The checkpoint that `resume=RUN` or `resume=auto` asks for, None for a fresh start.

    `auto` looks into this run's own directory, then into those beside it for the newest with an equal configuration.

    Raises:
        ConfigError: a named run has no checkpoint, or holds another model.
    """
    if config["resume"] is None:
        return None
    found = _automatic(config, run) if config["resume"] == "auto" else checkpoint.find(config["resume"])
    if found is not None:
        progress = checkpoint.load_progress(found)
        for name in ("model", "dataset"):
            if progress[name] != names[name]:
                raise ConfigError(f"resume={config['resume']}: holds {name}={progress[name]}, this run {names[name]}")
    return found


def _automatic(config: Mapping[str, Any], run: Path) -> Path | None:
    # the default directories are outputs/DATE/TIME
    days = run.parent.parent.glob("????-??-??") if _DATE.fullmatch(run.parent.name) else [run.parent]
    beside = (path for day in days for path in day.glob("*"))
    others = sorted((path for path in beside if (path / "config.yaml").is_file()), key=_age)
    for candidate in (run, *others):
        found = checkpoint.checkpoints(candidate)
        if found and (candidate == run or _continues(candidate, config)):
            return found[-1].resolve()
    return None


def _age(path: Path) -> float:
    return -(path / "config.yaml").stat().st_mtime


def _continues(candidate: Path, config: Mapping[str, Any]) -> bool:
    summary = summaries.read(candidate)
    if summary is not None and summary["status"] == "completed":
        return False
    stored = OmegaConf.to_container(OmegaConf.load(candidate / "config.yaml"))
    assert isinstance(stored, dict)
    return _comparable(stored) == _comparable(config)


def _comparable(config: Mapping[Any, Any]) -> str:
    return json.dumps({key: value for key, value in config.items() if key not in _MAY_DIFFER}, sort_keys=True)
