"""The settings of a run, read back from its directory or listed by name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from pipetrain.config.composition import settings_of
from pipetrain.config.hydra_errors import CONFIGURATION_ERRORS, explained
from pipetrain.config.overrides import Override
from pipetrain.config.schema import TARGET, leaves
from pipetrain.config.settings import Settings
from pipetrain.config.trust import check_targets
from pipetrain.errors import ConfigError, one_line
from pipetrain.tracking.run_directory import RunDirectory


def stored_settings(
    run: RunDirectory, calls: Sequence[str], overrides: Sequence[Override] = (), *, trust: bool = False
) -> Settings:
    """The settings of a run directory, which may be untrusted, with overrides.

    Args:
        run: the run directory.
        calls: the sections whose targets will be called.
        overrides: of the settings.
        trust: True to call targets that are not pipetrain's own.

    Raises:
        ConfigError: the configuration is missing or damaged, an override is wrong, or a target is not trusted.
    """
    config = run.stored_config()
    # it is written resolved; an interpolation could run code
    for setting, value in leaves(OmegaConf.to_container(config, resolve=False), into_lists=True):
        if isinstance(value, str) and "${" in value:
            raise ConfigError(f"{run.config}: {setting}={value}: the settings of a run are values, not interpolations")
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


def values_set(config: Mapping[str, Any], choices: Mapping[str, str]) -> dict[str, Any]:
    """Every choice and every value of a configuration, by its name on the command line; nulls are left out."""
    made = {group: choice for group, choice in choices.items() if choice != "None"}
    return {**made, **dict(_values(config, ""))}


def _values(section: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in leaves(section, above):
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield from _values({str(number): each for number, each in enumerate(value)}, name)
        elif value is not None and name.rpartition(".")[2] != TARGET:
            yield name, value if isinstance(value, bool | int | float | str) else str(value)
