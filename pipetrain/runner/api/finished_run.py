"""A run that has ended, as a Python program sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pipetrain.runner.config.given_objects import by_section
from pipetrain.runner.tracking import records, summary
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.run_lock import owner_of

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Run:
    """A run and its results, which are read from its directory.

    Attributes:
        path: the run directory.
        summary: content of `summary.json`; of a run that did not begin, or has not ended, its `status` and `reason`.
    """

    path: Path
    summary: Mapping[str, Any]
    _objects: Mapping[str, Any] = field(default_factory=dict)
    _trusted: bool = False

    @override
    def __repr__(self) -> str:
        final = " ".join(
            f"{name}={records.format_metric(value)}" for name, value in self.summary.get("final", {}).items()
        )
        return f"<Run {self.path}: {' '.join(filter(None, (self.status, final)))}>"

    @property
    def status(self) -> str:
        """completed, diverged, failed or interrupted; of a sweep also refused; else running or unfinished."""
        return str(self.summary["status"])

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`, which `pandas.DataFrame` takes."""
        return records.read_records(RunDirectory(self.path))

    @property
    def stages(self) -> list[dict[str, Any]]:
        """Measurements of each stage."""
        return list(self.summary.get("per_stage", ()))

    def checkpoint(self, step: int | None = None, *, best: bool = False) -> Path:
        """The folder of a checkpoint: the newest one, the one of a step, or the best by `checkpoint.metric`.

        Raises:
            ConfigError: it does not exist, or is damaged.
        """
        from pipetrain.runner.training.checkpoint.store import Selection

        return Selection(self.path, step, best=best).checkpoint()

    def model(self, step: int | None = None, *, best: bool = False) -> "nn.Module":
        """The model itself, uncut, on the CPU, with the weights of a checkpoint.

        Raises:
            ConfigError: there is no such checkpoint, the model cannot be built or has other weights, or its target is
                not trusted.
        """
        from pipetrain.runner.training.finished.module import trained_module

        return trained_module(self.checkpoint(step, best=best), self._objects, trust=self._trusted)

    def dataset(self) -> Any:
        """The data object of the run, with its `train` and `eval`, built again.

        Raises:
            ConfigError: it cannot be built, its vocabulary differs from the newest checkpoint's, or its target is not
                trusted.
        """
        from pipetrain.runner.training.finished.module import data_of

        return data_of(self.checkpoint(), self._objects, trust=self._trusted)


def load(path: str | Path, *, trust: bool = False, **objects: Any) -> Run:
    """The run in a directory.

    Args:
        path: the run directory.
        trust: True to let `Run.model` and `Run.dataset` call targets that are not pipetrain's own.
        objects: the objects that the run was given, such as `model`; its files do not contain them.

    Raises:
        ConfigError: this is not a run directory, or its summary is damaged.
    """
    run = RunDirectory(Path(path).absolute())
    run.stored_config()
    found = summary.read(run) or {"status": "running" if owner_of(run.path) else "unfinished"}
    return Run(run.path, found, by_section(objects), trust)
