"""Selection of checkpoints to use and to keep: the newest, the checkpoint of a step, the best by a metric."""

import contextlib
import math
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipetrain.config.schema import CheckpointConfig
from pipetrain.errors import ConfigError
from pipetrain.run.checkpoint import store
from pipetrain.run.checkpoint.writer import OLD
from pipetrain.tracking.evaluations import lower_is_better
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.stored_settings import stored_settings
from pipetrain.tracking.strict_json import number


def best_first(folders: Sequence[Path], metric: str) -> list[Path]:
    """Checkpoints that were evaluated by `metric`, best first; of equal ones the earlier first."""
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


def expired_checkpoints(folders: Sequence[Path], keep: CheckpointConfig) -> list[Path]:
    """The checkpoints, of all `folders`, oldest first, that the settings do not keep.

    The newest stays, as a run resumes from it, and step 0, which exists only on request.
    """
    if keep.keep_last is None and keep.keep_best is None:
        return []
    kept = {*folders[-(keep.keep_last or 1) :], *best_first(folders, keep.metric)[: keep.keep_best or 0]}
    return [folder for folder in folders if folder not in kept and store.step_of(folder)]


def remove_expired(run: RunDirectory, keep: CheckpointConfig) -> None:
    """Removes what the settings do not keep; each goes in one step, so that none is ever half there."""
    for folder in expired_checkpoints(store.checkpoints(run.path), keep):
        old = folder.with_name(folder.name + OLD)
        with contextlib.suppress(OSError):  # what stays is only in the way
            shutil.rmtree(folder.rename(old))


def _evaluated(folder: Path) -> tuple[Mapping[str, float], Collection[str]]:
    """The metrics of a checkpoint, and the names of those that fall as the model improves."""
    try:
        progress = store.load_progress(folder)
        metrics = {name: number(value) for name, value in progress["metrics"].items()}
        return metrics, lower_is_better(progress.get("lower_is_better", ()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # damaged, as will be said where it is used
        return {}, ()


@dataclass(frozen=True)
class Selection:
    """The checkpoint that a command asks for.

    Attributes:
        path: a run directory, or a checkpoint in one.
        step: the checkpoint of this step; None: the newest.
        best: True to select the best one.
        metric: what makes it the best; None: the run's own `checkpoint.metric`.
    """

    path: Path
    step: int | None = None
    best: bool = False
    metric: str | None = None

    @property
    def run(self) -> RunDirectory:
        """The run that it is of."""
        inside = store.is_checkpoint(self.path)
        return RunDirectory(self.path.resolve().parent.parent if inside else self.path)

    def checkpoint(self) -> Path:
        """The checkpoint, every file of which is whole.

        Raises:
            ConfigError: there is none, or it is damaged.
        """
        if self.metric is not None and not self.best:
            raise ConfigError(f"--metric {self.metric}: goes with --best")
        if store.is_checkpoint(self.path):
            if self.step is not None or self.best:
                flag = "--best" if self.best else f"--step {self.step}"
                raise ConfigError(f"{self.path} {flag}: this is a checkpoint already; name its run directory instead")
            return store.undamaged(self.path)
        return self._best() if self.best else store.at_step(self.path, self.step)

    def _best(self) -> Path:
        metric = self.metric or stored_settings(self.run, calls=()).checkpoint.metric
        ranked = best_first(store.checkpoints(self.path), metric)
        if not ranked:
            known = ", ".join(metrics_of(store.checkpoints(self.path))) or "none"
            raise ConfigError(
                f"--best: no checkpoint of {self.path} was evaluated by {metric}; metrics there are: {known}"
            )
        return store.undamaged(ranked[0])
