"""The checkpoint that a command asks for: the newest, the one of a step, or the best by a metric."""

from dataclasses import dataclass
from pathlib import Path

from pipetrain.errors import ConfigError
from pipetrain.run.checkpoint import store
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.stored_settings import stored_settings


@dataclass(frozen=True)
class Selection:
    """The checkpoint that a command asks for.

    Attributes:
        path: a run directory, or a checkpoint in one.
        step: step of the checkpoint; None: the newest.
        best: True to select the best one.
        metric: the metric of the best one; None: the run's own `checkpoint.metric`.
    """

    path: Path
    step: int | None = None
    best: bool = False
    metric: str | None = None

    @property
    def run(self) -> RunDirectory:
        """The run of the checkpoint."""
        return store.run_of(self.path) if store.is_checkpoint(self.path) else RunDirectory(self.path)

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
        if not self.best:
            return store.newest_undamaged(self.path) if self.step is None else store.at_step(self.path, self.step)
        metric = self.metric or stored_settings(self.run, calls=()).checkpoint.metric
        folders = store.checkpoints(self.path)
        ranked = store.best_first(folders, metric)
        if not ranked:
            known = ", ".join(store.metrics_of(folders)) or "none"
            raise ConfigError(
                f"--best: no checkpoint of {self.path} was evaluated by {metric}; metrics there are: {known}"
            )
        return store.undamaged(ranked[0])
