"""A run read back from its directory."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from pipetrain.config.settings import Settings, choices_made, settings_of
from pipetrain.errors import ConfigError


def stored_settings(run: Path, overrides: list[str] | None = None) -> Settings:
    """The settings of a run, with `overrides` such as `dataset.root=/data` on top.

    Raises:
        ConfigError: `run` is no run directory, or an override no setting of it.
    """
    path = run / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{run}: not a run directory (it has no config.yaml)")
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    OmegaConf.set_struct(config, True)
    try:
        config.merge_with_dotlist(overrides or [])
        return settings_of(config, _choices(run))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{' '.join(overrides or []) or path}: {str(error).splitlines()[0]}") from error


def _choices(run: Path) -> dict[str, str]:
    """What the run was started with of each group; nothing where Hydra's own settings are not beside its."""
    path = run / ".hydra" / "hydra.yaml"
    if not path.is_file():
        return {}
    return choices_made(OmegaConf.load(path).hydra.runtime.choices)
