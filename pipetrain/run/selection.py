"""Which checkpoint of which run a command is about: the newest, that of a step, the best, or one by its own path."""

from dataclasses import dataclass
from pathlib import Path

from pipetrain.errors import ConfigError
from pipetrain.run import checkpoint, ranking
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.stored_settings import stored_settings


@dataclass(frozen=True)
class Selection:
    """What was asked for.

    Attributes:
        path: a run directory, or a checkpoint in one.
        step: the checkpoint of this step; None: the newest.
        best: whether the best one is meant.
        metric: what makes it the best; None: the run's own `checkpoint.metric`.
    """

    path: Path
    step: int | None = None
    best: bool = False
    metric: str | None = None

    @property
    def run(self) -> RunDirectory:
        """The run that it is of."""
        inside = checkpoint.is_checkpoint(self.path)
        return RunDirectory(self.path.resolve().parent.parent if inside else self.path)

    def checkpoint(self) -> Path:
        """The checkpoint, every file of which is whole.

        Raises:
            ConfigError: there is none, or it is damaged.
        """
        if self.metric is not None and not self.best:
            raise ConfigError(f"--metric {self.metric}: goes with --best")
        if checkpoint.is_checkpoint(self.path):
            if self.step is not None or self.best:
                flag = "--best" if self.best else f"--step {self.step}"
                raise ConfigError(f"{self.path} {flag}: this is a checkpoint already; name its run directory instead")
            return checkpoint.undamaged(self.path)
        return self._best() if self.best else checkpoint.at_step(self.path, self.step)

    def _best(self) -> Path:
        metric = self.metric or stored_settings(self.run, calls=()).checkpoint.metric
        ranked = ranking.best_first(checkpoint.checkpoints(self.path), metric)
        if not ranked:
            known = ", ".join(ranking.metrics_of(checkpoint.checkpoints(self.path))) or "none"
            raise ConfigError(
                f"--best: no checkpoint of {self.path} was evaluated by {metric}; metrics there are: {known}"
            )
        return checkpoint.undamaged(ranked[0])
