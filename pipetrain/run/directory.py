"""A run read back from its directory."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipetrain.errors import ConfigError


def stored_config(run: Path, overrides: list[str] | None = None) -> dict[str, Any]:
    """The resolved configuration of a run, with `overrides` such as `dataset.root=/data` on top.

    Raises:
        ConfigError: `run` is no run directory, or an override no setting of it.
    """
    path = run / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{run}: not a run directory (it has no config.yaml)")
    config = OmegaConf.load(path)
    OmegaConf.set_struct(config, True)
    try:
        config.merge_with_dotlist(overrides or [])
    except Exception as error:
        raise ConfigError(f"{' '.join(overrides or [])}: {str(error).splitlines()[0]}") from error
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}
