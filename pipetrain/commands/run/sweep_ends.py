"""The sweep of this process: the lock of its folder, and a file for each run that ended, in whatever process."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from typing_extensions import override

from pipetrain.commands.output_folder import not_made
from pipetrain.config.choices import with_own_names
from pipetrain.config.composition import choices_made
from pipetrain.errors import ConfigError, ExitCode
from pipetrain.report.error_line import report_error
from pipetrain.tracking.files import write_whole
from pipetrain.tracking.run_directory import RunDirectory, check_own
from pipetrain.tracking.run_lock import locked
from pipetrain.tracking.stored_settings import values_set

NAME = ".ends"


@dataclass(frozen=True)
class Sweep:
    """The sweep that this process carries out.

    Attributes:
        folder: of all its runs.
        objective: what its sweeper optimizes, such as `top1` or `best_top1`; None if it makes every combination.
    """

    folder: Path
    objective: str | None


_sweeps: list[Sweep] = []
"""The sweep of this process, if it runs one."""


@dataclass(frozen=True)
class RunEnd:
    """End of one run of a sweep.

    Attributes:
        path: its directory, which a run that was refused has not.
        code: its exit code.
        settings: every value that was set, by its name on the command line.
        asked: the names that were given on the command line.
    """

    path: str
    code: int
    settings: Mapping[str, Any]
    asked: Sequence[str]


@contextmanager
def refusing() -> Iterator[None]:
    """Around a callback that may refuse a sweep: Hydra turns an exception of a callback into a warning and continues.

    Raises:
        SystemExit: the sweep is refused, as has been said.
    """
    try:
        yield
    except (ConfigError, OSError, OmegaConfBaseException) as error:
        refused = error if isinstance(error, ConfigError) else not_made(error)
        if refused is None:
            raise
        raise SystemExit(report_error(refused, ExitCode.WRONG_USAGE)) from error


def begin(folder: Path, objective: str | None) -> None:
    """Begins a sweep in this process."""
    forget()
    _sweeps.append(Sweep(folder, objective))
    shutil.rmtree(folder / NAME, ignore_errors=True)  # of a sweep that was killed


def add(hydra: HydraConf, config: DictConfig, code: ExitCode) -> None:
    """Adds the end of a run to its sweep, in whatever process it was carried out.

    Args:
        hydra: Hydra's own settings of the run.
        config: the run's.
        code: its exit code.
    """
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException:  # its value cannot be resolved
        plain = {}
    settings = values_set(plain, with_own_names(choices_made(hydra.runtime.choices), plain))
    asked = [word.lstrip("+").partition("=")[0] for word in hydra.overrides.task]
    folder = Path(hydra.sweep.dir) / NAME
    folder.mkdir(parents=True, exist_ok=True)
    end = RunEnd(hydra.runtime.output_dir, code, settings, asked)
    write_whole(folder / f"{hydra.job.num}.json", json.dumps(asdict(end)))


def sweep() -> Sweep | None:
    """The sweep that this process carries out; None if it carries out none."""
    return _sweeps[-1] if _sweeps else None


def ends(folder: Path) -> list[RunEnd]:
    """Ends of a sweep's runs so far, in the order of their numbers."""
    files = sorted((folder / NAME).glob("*.json"), key=lambda file: int(file.stem))
    return [RunEnd(**json.loads(file.read_text(encoding="utf-8"))) for file in files]


def exit_code() -> ExitCode:
    """The first exit code of this process's sweep that is not 0.

    To a search a run that diverged is a result like any other, as long as one completed.
    """
    codes = [ExitCode(end.code) for sweep in _sweeps for end in ends(sweep.folder)]
    if ExitCode.COMPLETED in codes and any(sweep.objective for sweep in _sweeps):
        codes = [code for code in codes if code is not ExitCode.DIVERGED]
    return next((code for code in codes if code), ExitCode.COMPLETED)


def forget() -> None:
    """Ends the sweep of this process, if there is one, and removes the files."""
    while _sweeps:
        shutil.rmtree(_sweeps.pop().folder / NAME, ignore_errors=True)


_WRITTEN = "multirun.yaml"
_lock = ExitStack()
"""Not a part of the callback, which launchers copy to their processes."""


class SweepLock(Callback):
    """Takes the lock before Hydra writes to the folder."""

    @override
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        with refusing():
            folder = Path(config.hydra.sweep.dir)
            _lock.callback(_remove_empty_sweep, folder)
            _lock.enter_context(locked(folder))
            for name in (_WRITTEN, NAME):
                check_own(folder / name)


def release() -> None:
    """Frees the lock of the sweep that has ended, if there was one, and removes its folder if no run left a file."""
    _lock.close()


def _remove_empty_sweep(folder: Path) -> None:
    with suppress(OSError):
        if {each.name for each in folder.iterdir()} <= {_WRITTEN}:
            (folder / _WRITTEN).unlink(missing_ok=True)
            RunDirectory(folder).remove_if_empty()
