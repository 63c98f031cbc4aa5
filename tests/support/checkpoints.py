"""Checkpoints as a run of one process writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint.writer import Snapshot, Writer, save

ALONE = Writer(0, lambda value: [value], coordinates=True)
"""The only process."""
NAMES = {"model": "small", "dataset": "synthetic_images"}
"""What else the progress of any checkpoint has."""
NO_CONFIG: dict[str, Any] = {"settings": {}, "choices": {}}


def written(run: Path, step: int, tensors: Mapping[str, Tensor], **progress: Any) -> Path:
    """The folder of a checkpoint that this has written into a run directory."""
    run.mkdir(parents=True, exist_ok=True)
    folder = RunDirectory(run).checkpoint(step)
    save(folder, Snapshot(tensors, {"step": step, **NAMES, **progress}, NO_CONFIG), ALONE)
    return folder
