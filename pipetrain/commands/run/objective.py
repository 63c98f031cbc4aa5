"""Objective of the runs of a searching sweeper, such as Optuna's."""

import math
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import ValueType
from omegaconf import DictConfig, OmegaConf

from pipetrain.config.composition import overrides_of
from pipetrain.config.schema import LoaderConfig
from pipetrain.config.settings import DatasetSettings, MetricSettings
from pipetrain.errors import ConfigError, ExitCode
from pipetrain.tracking.evaluations import lower_is_better
from pipetrain.tracking.run_directory import RunDirectory

_OWN_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


def searches(config: DictConfig) -> bool:
    """True if the sweeper chooses runs by the results of earlier runs; Hydra's own makes every combination."""
    return str(config.hydra.sweeper._target_) != _OWN_SWEEPER


def check_search(config: DictConfig) -> None:
    """Checks, before the first run of a search, that it has an objective that Optuna can optimize.

    Raises:
        ConfigError: it has none, or Optuna has the opposite direction, or cannot read a word.
    """
    metric = metric_of(config)
    if config.eval.every_epochs == 0:
        raise ConfigError(f"sweep.objective={metric}: eval.every_epochs=0 evaluates nothing to optimize; set it to 1")
    given = _direction(config.hydra.sweeper)
    if given is None:
        return
    falls = _falls(config, metric) or (given == "minimize" and metric in _falling_of_texts(config))
    wanted = "minimize" if falls else "maximize"
    if given != wanted:
        raise _wrong_direction(given, metric, wanted)
    for each in overrides_of(config.hydra.overrides.task):
        if each.value_type is ValueType.GLOB_CHOICE_SWEEP:
            raise ConfigError(f"{each.input_line}: Optuna's sweeper does not read glob; list the choices")


def objective_of(config: DictConfig, sweeper: DictConfig, folder: Path, code: ExitCode) -> float:
    """The objective's value of a run; infinitely bad if the run did not complete, or was not evaluated.

    Args:
        config: of the run, without Hydra's own.
        sweeper: Hydra's section of this name.
        folder: of the run.
        code: with which it ended.

    Raises:
        ConfigError: Optuna maximizes a metric of generated texts that falls.
    """
    metric, direction = metric_of(config), _direction(sweeper)
    if code is ExitCode.COMPLETED:
        from pipetrain.tracking import summary

        content: Any = summary.read(RunDirectory(folder)) or {}
        if direction == "maximize" and metric in content.get("lower_is_better", ()):
            raise _wrong_direction("maximize", metric, "minimize")
        value = content.get("best" if config.sweep.best else "final", {}).get(metric)
        if isinstance(value, int | float) and not math.isnan(value):
            return float(value)
    falls = _falls(config, metric) if direction is None else direction == "minimize"
    return math.inf if falls else -math.inf


def metric_of(config: DictConfig) -> str:
    """The metric that a sweeper optimizes."""
    return str(config.sweep.objective or config.checkpoint.metric)


def column_of(config: DictConfig) -> str:
    """The objective's column in comparisons of runs."""
    return f"best_{metric_of(config)}" if config.sweep.best else metric_of(config)


def _wrong_direction(given: str, metric: str, wanted: str) -> ConfigError:
    return ConfigError(
        f"hydra.sweeper.direction={given}: sweep.objective={metric} must be {wanted}d; set "
        f"hydra.sweeper.direction={wanted}"
    )


def _direction(sweeper: DictConfig) -> str | None:
    """Optuna's direction; None for a sweeper without one."""
    direction = sweeper.get("direction")
    return None if direction is None else str(getattr(direction, "name", direction))


def _falls(config: DictConfig, metric: str) -> bool:
    """True if the metric falls as a model improves; False for a metric that the run refuses."""
    section = config.metrics.get(metric) if isinstance(config.metrics, DictConfig) else None
    if section is None:
        return metric in lower_is_better(())
    try:
        asked = MetricSettings.of(f"metrics.{metric}", OmegaConf.to_container(section, resolve=True))
        return asked.rises(None if asked.higher_is_better is not None else asked.target.build()) is False
    except (ConfigError, ValueError):
        return False


def _falling_of_texts(config: DictConfig) -> Collection[str]:
    """The metrics of generated texts that fall as a model improves, which only the data set names."""
    # from here on torch is needed, which takes seconds to import
    from pipetrain.training.builders.data import build_dataset

    section: dict[str, Any] = OmegaConf.to_container(config.dataset, resolve=True)  # type: ignore[assignment]
    dataset = build_dataset(DatasetSettings.of({**asdict(LoaderConfig()), **section}), config.seed)
    return getattr(getattr(dataset, "decoding", None), "lower_is_better", ())
