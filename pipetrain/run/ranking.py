"""Checkpoints in the order of a metric, as the evaluation at their own step gave it, and those that may go."""

import contextlib
import math
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pipetrain.config.schema import CheckpointConfig
from pipetrain.run import checkpoint
from pipetrain.run.checkpoint_writer import OLD
from pipetrain.tracking.evaluations import lower_is_better
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.strict_json import number


def best_first(folders: Sequence[Path], metric: str) -> list[Path]:
    """Those that were evaluated by `metric`; of equal ones the earlier first."""
    ranked = []
    for folder in folders:
        metrics, lower = _evaluated(folder)
        value = metrics.get(metric, math.nan)
        if not math.isnan(value):
            ranked.append((value if metric in lower else -value, folder))
    return [folder for _, folder in sorted(ranked)]


def metrics_of(folders: Sequence[Path]) -> list[str]:
    """The metrics that some of the checkpoints were evaluated by."""
    return sorted({name for folder in folders for name in _evaluated(folder)[0]})


def superfluous(folders: Sequence[Path], keep: CheckpointConfig) -> list[Path]:
    """The checkpoints, of all `folders`, oldest first, that the settings do not keep.

    The newest stays, as a run goes on from it, and step 0, which is only there when asked for.
    """
    if keep.keep_last is None and keep.keep_best is None:
        return []
    kept = {*folders[-(keep.keep_last or 1) :], *best_first(folders, keep.metric)[: keep.keep_best or 0]}
    return [folder for folder in folders if folder not in kept and checkpoint.step_of(folder)]


def remove_superfluous(run: RunDirectory, keep: CheckpointConfig) -> None:
    """Removes what the settings do not keep; each goes in one step, so that none is ever half there."""
    for folder in superfluous(checkpoint.checkpoints(run.path), keep):
        old = folder.with_name(folder.name + OLD)
        with contextlib.suppress(OSError):  # what stays is only in the way
            shutil.rmtree(folder.rename(old))


def _evaluated(folder: Path) -> tuple[Mapping[str, float], Collection[str]]:
    """The metrics of a checkpoint, and the names of those that fall as the model improves."""
    try:
        progress = checkpoint.load_progress(folder)
        metrics = {name: number(value) for name, value in progress["metrics"].items()}
        return metrics, lower_is_better(progress.get("lower_is_better", ()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # damaged, as will be said where it is used
        return {}, ()
