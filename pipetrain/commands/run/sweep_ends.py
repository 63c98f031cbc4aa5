"""The sweep of this process: the lock of its folder, and files about ends of runs, which other processes may write."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipetrain.commands.output_folder import directory_error
from pipetrain.config.choices import with_own_names
from pipetrain.config.composition import choices_made
from pipetrain.errors import ConfigError, ExitCode
from pipetrain.report.error_line import report_error
from pipetrain.tracking.files import write_whole
from pipetrain.tracking.run_directory import RunDirectory, check_own
from pipetrain.tracking.run_lock import locked

NAME = ".ends"


_HYDRAS = "multirun.yaml"


@dataclass(frozen=True)
class Sweep:
    """The sweep that this process carries out.

    Attributes:
        folder: of all its runs.
        objective: the optimized metric, such as `top1` or `best_top1`; None if the sweeper runs every combination.
    """

    folder: Path
    objective: str | None


@dataclass(frozen=True)
class RunEnd:
    """End of one run of a sweep.

    Attributes:
        path: its directory, which a refused run does not have.
        code: its exit code.
        settings: every value that was set, by its name on the command line.
        asked: the names that were given on the command line.
    """

    path: str
    code: int
    settings: Mapping[str, Any]
    asked: Sequence[str]


# not in the callback, which launchers copy to their processes
_sweep: Sweep | None = None
_lock = ExitStack()


@contextmanager
def refusing() -> Iterator[None]:
    """Around a callback that may refuse a sweep: Hydra turns an exception of a callback into a warning and continues.

    Raises:
        SystemExit: the sweep is refused; the error has been reported.
    """
    try:
        yield
    except (ConfigError, OSError, OmegaConfBaseException) as error:
        refused = error if isinstance(error, ConfigError) else directory_error(error)
        if refused is None:
            raise
        raise SystemExit(report_error(refused, ExitCode.WRONG_USAGE)) from error


def begin(folder: Path, objective: str | None) -> None:
    """Locks the folder of a sweep and begins the sweep in this process.

    Raises:
        ConfigError: another process has locked the folder, or files of ours lead out of it.
    """
    global _sweep
    _lock.callback(_remove_empty_sweep, folder)
    _lock.enter_context(locked(folder))
    for name in (_HYDRAS, NAME):
        check_own(folder / name)
    _lock.callback(shutil.rmtree, folder / NAME, ignore_errors=True)
    shutil.rmtree(folder / NAME, ignore_errors=True)  # of a sweep that was killed
    _sweep = Sweep(folder, objective)


def end() -> None:
    """Ends the sweep of this process, if there is one: frees the lock, and removes the files and an empty folder."""
    global _sweep
    _sweep = None
    _lock.close()


def _remove_empty_sweep(folder: Path) -> None:
    with suppress(OSError):
        if {each.name for each in folder.iterdir()} <= {_HYDRAS}:
            (folder / _HYDRAS).unlink(missing_ok=True)
            RunDirectory(folder).remove_if_empty()


def add(hydra: HydraConf, config: DictConfig, code: ExitCode) -> None:
    """Adds the end of a run to its sweep; the run may be in another process than the sweep.

    Args:
        hydra: Hydra's own settings of the run.
        config: settings of the run.
        code: its exit code.
    """
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException:  # its value cannot be resolved
        plain = {}
    from pipetrain.tracking.hyperparameters import values_set  # imports torch

    settings = values_set(plain, with_own_names(choices_made(hydra.runtime.choices), plain))
    asked = [word.lstrip("+").partition("=")[0] for word in hydra.overrides.task]
    folder = Path(hydra.sweep.dir) / NAME
    folder.mkdir(parents=True, exist_ok=True)
    end = RunEnd(hydra.runtime.output_dir, code, settings, asked)
    write_whole(folder / f"{hydra.job.num}.json", json.dumps(asdict(end)))


def sweep() -> Sweep | None:
    """The sweep that this process carries out, if any."""
    return _sweep


def ends(folder: Path) -> list[RunEnd]:
    """Ends of a sweep's runs so far, in the order of their numbers."""
    files = sorted((folder / NAME).glob("*.json"), key=lambda file: int(file.stem))
    return [RunEnd(**json.loads(file.read_text(encoding="utf-8"))) for file in files]


def exit_code(sweep: Sweep) -> ExitCode:
    """The first exit code of the sweep's runs that is not 0.

    A search treats a diverged run as an ordinary result, as long as one run completed.
    """
    codes = [ExitCode(end.code) for end in ends(sweep.folder)]
    if sweep.objective and ExitCode.COMPLETED in codes:
        codes = [code for code in codes if code is not ExitCode.DIVERGED]
    return next((code for code in codes if code), ExitCode.COMPLETED)
