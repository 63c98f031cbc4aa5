"""Objective of the runs of a searching sweeper, such as Optuna's."""

import math
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pipetrain.engine.errors import ExitCode
from pipetrain.runner.tracking.evaluations import lower_is_better
from pipetrain.runner.tracking.run_directory import RunDirectory

_OWN_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


def searches(config: DictConfig) -> bool:
    """True if the sweeper chooses runs by the results of earlier runs; Hydra's own makes every combination."""
    return str(config.hydra.sweeper._target_) != _OWN_SWEEPER


def objective_of(config: DictConfig, sweeper: DictConfig, folder: Path, code: ExitCode) -> float:
    """The metric of a run that a sweeper optimizes; infinitely bad if the run did not complete, or was not evaluated.

    Args:
        config: of the run, without Hydra's own.
        sweeper: Hydra's section of this name.
        folder: of the run.
        code: with which it ended.
    """
    metric, direction = _metric_of(config), sweeper.get("direction")
    if code is ExitCode.COMPLETED:
        # from here on torch is needed, which takes seconds to import
        from pipetrain.runner.tracking import summary

        content: Any = summary.read(RunDirectory(folder)) or {}
        value = content.get("best" if config.sweep.best else "final", {}).get(metric)
        if isinstance(value, int | float) and not math.isnan(value):
            return float(value)
    falls = metric in lower_is_better(()) if direction is None else "minimize" in str(direction)
    return math.inf if falls else -math.inf


def _metric_of(config: DictConfig) -> str:
    return str(config.sweep.objective or config.checkpoint.metric)


def column_of(config: DictConfig) -> str:
    """The objective's column in comparisons of runs."""
    return f"best_{_metric_of(config)}" if config.sweep.best else _metric_of(config)
