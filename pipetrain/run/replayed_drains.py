"""The drains of another run that `replay_drains` repeats."""

from pathlib import Path

from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.tracking import records
from pipetrain.tracking.run_directory import RunDirectory


def replayed_drains(settings: Settings) -> list[int]:
    """The steps after which the named run drained though its settings did not ask for it; nothing if none is named.

    Raises:
        ConfigError: there is no record of a run.
    """
    if settings.replay_drains is None:
        return []
    run = RunDirectory(Path(settings.replay_drains))
    if not run.metrics.is_file():
        raise ConfigError(
            f"replay_drains={settings.replay_drains}: no {run.metrics.name} here, which tells of drains; name a run "
            "directory"
        )
    return sorted({record["step"] for record in records.read_records(run) if record.get("kind") == "drain"})
