"""The settings of a run, read back from its directory by those who did not start it."""

from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf

from pipetrain.config.composition import settings_of
from pipetrain.config.hydra_errors import CONFIGURATION_ERRORS, explained
from pipetrain.config.overrides import Override
from pipetrain.config.schema import leaves
from pipetrain.config.settings import Settings
from pipetrain.config.trust import check_targets
from pipetrain.errors import ConfigError, one_line
from pipetrain.tracking.run_directory import RunDirectory


def stored_settings(
    run: RunDirectory, calls: Sequence[str], overrides: Sequence[Override] = (), *, trust: bool = False
) -> Settings:
    """The settings of a run that may be another's, with changes on top.

    Args:
        run: where they are.
        calls: the sections whose targets will be called.
        overrides: the changes.
        trust: True to call targets that are not pipetrain's own.

    Raises:
        ConfigError: this is no run directory, its configuration is damaged, a change is wrong, or a target that will
            be called is not pipetrain's own.
    """
    config = _content(run)
    config.setdefault("metrics", {})  # of a run before there were any
    OmegaConf.set_struct(config, value=True)
    OmegaConf.set_struct(config.metrics, value=False)
    choices = run.choices()
    for override in overrides:
        override.apply(config, choices.get("model", ""))
        if override.chooses:
            choices[override.key] = override.value
    try:
        settings = settings_of(config, choices)
    except Exception as error:  # whatever a damaged file makes of OmegaConf
        if overrides and isinstance(error, ConfigError):
            raise
        words = " ".join(override.text for override in overrides)
        reason = explained(error) if isinstance(error, CONFIGURATION_ERRORS) else str(error)
        raise ConfigError(f"{words or run.config}: {one_line(reason)}") from error
    if not trust:
        asked = [path for override in overrides for path in override.targets]
        check_targets(settings.stored, calls, asked, str(run.config))
    return settings


def _content(run: RunDirectory) -> DictConfig:
    """Content of config.yaml, which is written resolved; interpolations are refused, as they could run code."""
    config = run.stored_config()
    for setting, value in leaves(OmegaConf.to_container(config, resolve=False), into_lists=True):
        if isinstance(value, str) and "${" in value:
            raise ConfigError(f"{run.config}: {setting}={value}: the settings of a run are values, not interpolations")
    return config
