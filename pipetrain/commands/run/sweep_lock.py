"""The lock of a sweep's folder, so that no second sweep writes to it."""

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from typing_extensions import override

from pipetrain.commands.run import sweep_ends
from pipetrain.tracking.run_directory import RunDirectory, check_own
from pipetrain.tracking.run_lock import locked

_WRITTEN = "multirun.yaml"
_held = ExitStack()
"""Not a part of the callback, which launchers copy to their processes."""


class SweepLock(Callback):
    """Takes the lock before Hydra writes to the folder."""

    @override
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        with sweep_ends.refusing():
            folder = Path(config.hydra.sweep.dir)
            _held.callback(_remove_empty_folder, folder)
            _held.enter_context(locked(folder))
            for name in (_WRITTEN, sweep_ends.NAME):
                check_own(folder / name)


def release() -> None:
    """Frees the lock of the sweep that has ended, if there was one, and removes its folder if no run left a file."""
    _held.close()


def _remove_empty_folder(folder: Path) -> None:
    with suppress(OSError):
        if {each.name for each in folder.iterdir()} <= {_WRITTEN}:
            (folder / _WRITTEN).unlink(missing_ok=True)
            RunDirectory(folder).remove_if_empty()
