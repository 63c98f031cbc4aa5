"""Identity of a run in MLflow and Weights & Biases: its id there, kept in trackers.json, and its tags."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipetrain.data.files import strict_json
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.tracking.run_directory import RunDirectory

PROJECT = "pipetrain"
"""The experiment or project, unless the library's environment variables name another."""

MLFLOW_PARENT = ".mlflow-parent"
"""File of a sweep with the id of its parent run in MLflow."""


def stored_ids(run: RunDirectory) -> dict[str, str]:
    """Tracker -> id of the run there; empty if there is none, or the file is damaged."""
    try:
        ids: Any = strict_json.read(run.tracker_ids)
        return {str(tracker): str(number) for tracker, number in ids.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def store_ids(run: RunDirectory, **ids: str) -> None:
    """Adds to the ids of a run."""
    write_whole(run.tracker_ids, json.dumps({**stored_ids(run), **ids}) + "\n")


def tags_of(choices: Mapping[str, str]) -> dict[str, str]:
    """The choices that runs are searched by."""
    return {group: choices[group] for group in ("method", "model", "dataset") if group in choices}


def artifacts(run: RunDirectory) -> list[Path]:
    """The files of a run that are uploaded at its end, as far as they exist."""
    return [path for path in (run.summary, run.config, run.page) if path.is_file()]
