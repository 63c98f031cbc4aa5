"""A sweep around its runs: the lock of its folder, a name for each run, their ends, and a comparison of them.

Launchers may carry out the runs in other processes, so each writes its end to a file.
"""

import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.experimental.callback import Callback
from hydra.types import TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from typing_extensions import override

from pipetrain.commands.run import objective
from pipetrain.data.files import strict_json
from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError, ExitCode
from pipetrain.runner.api.one_run import end_sweep_in_mlflow
from pipetrain.runner.config.choices import with_own_names
from pipetrain.runner.config.composition import (
    check_hydra,
    check_presets_swept,
    choices_made,
    overrides_of,
    search_path,
)
from pipetrain.runner.config.messages import chosen_by, without_names
from pipetrain.runner.launch.signals import Interruption, passed_on
from pipetrain.runner.terminal.error_line import report_error
from pipetrain.runner.terminal.output_folder import directory_error
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.tracking.run_directory import RunDirectory, check_own, runs_in
from pipetrain.runner.tracking.run_lock import locked
from pipetrain.runner.tracking.stored_settings import values_set
from pipetrain.runner.tracking.trackers.identity import MLFLOW_PARENT

_ENDS = ".ends"
_STOP = ".stop"
_LOCAL = (
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher",
)
"""Launchers that start the runs in processes of this machine, which end with the command; jobs of Slurm do not."""
_HYDRAS = "multirun.yaml"


@dataclass(frozen=True)
class Sweep:
    """The sweep that this process carries out.

    Attributes:
        folder: of all its runs.
        objective: the optimized metric, such as `top1` or `best_top1`; None if the sweeper runs every combination.
        interruption: of the runs, if the launcher starts them in other processes.
        began_at: seconds since the epoch.
    """

    folder: Path
    objective: str | None
    interruption: Interruption | None = None
    began_at: float = field(default_factory=time.time)


@dataclass(frozen=True)
class RunEnd:
    """End of one run of a sweep.

    Attributes:
        path: its directory, which a refused run does not have.
        settings: values that were set, by their names on the command line.
        asked: names that were given on the command line.
    """

    path: str
    code: int
    settings: Mapping[str, Any]
    asked: Sequence[str]


# not in the callback, which launchers copy to their processes
_sweep: Sweep | None = None
_lock = ExitStack()


def begin(folder: Path, objective: str | None, *, local: bool = False) -> None:
    """Locks the folder of a sweep and begins the sweep in this process.

    With `local`, runs in other processes of this machine get the signals of this one.

    Raises:
        ConfigError: another process has locked the folder, files of ours lead out of it, or an outer launcher has
            started this process.
    """
    global _sweep
    _lock.callback(_remove_empty_sweep, folder)
    if outer_launcher.is_present():
        raise ConfigError("RANK is set: an outer launcher starts the processes of one run, not of --multirun")
    _lock.enter_context(locked(folder))
    for name in (_HYDRAS, _ENDS, MLFLOW_PARENT):
        check_own(folder / name)
    _lock.callback(shutil.rmtree, folder / _ENDS, ignore_errors=True)
    shutil.rmtree(folder / _ENDS, ignore_errors=True)  # of a sweep that was killed
    interruption = None
    if local:
        _lock.callback(_end_processes)
        interruption = _lock.enter_context(passed_on(partial(_interrupt, folder)))
    _sweep = Sweep(folder, objective, interruption)


def has_local_runs(launcher: DictConfig) -> bool:
    """True if a launcher starts the runs in processes of this machine."""
    return launcher.get("_target_") in _LOCAL


def _interrupt(folder: Path, name: str) -> None:
    stop(folder, name)
    line = "\ninterrupted: each run finishes and saves its steps in flight; interrupt again to stop now\n"
    with suppress(OSError):
        os.write(1, line.encode())  # not by print: the signal may have come in the middle of one


def _end_processes() -> None:
    """Ends joblib's idle processes, which would outlive the command and hold its pipes."""
    if "joblib.externals.loky" in sys.modules:
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown()


def stop(folder: Path, name: str) -> None:
    """Has all runs of the sweep in `folder` save and end, because of a signal; may be called in any process."""
    with suppress(OSError):
        (folder / _ENDS).mkdir(parents=True, exist_ok=True)
        (folder / _ENDS / f"{name}{_STOP}").touch()


def stopped_by(folder: Path) -> str | None:
    """Name of the signal for which the runs of a sweep end; None if they do not."""
    return next((file.stem for file in (folder / _ENDS).glob(f"*{_STOP}")), None)


def check() -> None:
    """Ends a sweep whose runs a signal has ended.

    Raises:
        KeyboardInterrupt: it has.
    """
    if _sweep is not None and _sweep.interruption is not None:
        if name := stopped_by(_sweep.folder):
            _sweep.interruption.note(signal.Signals[name])
        _sweep.interruption.check()


def end(*, interrupted: bool = False) -> None:
    """Ends the sweep of this process, if there is one: frees the lock, and removes the files and an empty folder."""
    global _sweep
    if _sweep is not None:
        status = "failed" if exit_code(_sweep) else "completed"
        end_sweep_in_mlflow(_sweep.folder, "interrupted" if interrupted else status)
    _sweep = None
    _lock.close()


def _remove_empty_sweep(folder: Path) -> None:
    with suppress(OSError):
        if {each.name for each in folder.iterdir()} <= {_HYDRAS}:
            (folder / _HYDRAS).unlink(missing_ok=True)
            RunDirectory(folder).remove_if_empty()


def add(hydra: HydraConf, config: DictConfig, code: ExitCode) -> None:
    """Adds the end of a run to its sweep; the run may be in another process than the sweep."""
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException:  # its value cannot be resolved
        plain = {}
    settings = values_set(plain, with_own_names(choices_made(hydra.runtime.choices), plain))
    asked = [word.lstrip("+").partition("=")[0] for word in hydra.overrides.task]
    folder = Path(hydra.sweep.dir) / _ENDS
    folder.mkdir(parents=True, exist_ok=True)
    end = RunEnd(hydra.runtime.output_dir, code, settings, asked)
    write_whole(folder / f"{hydra.job.num}.json", json.dumps(asdict(end)))


def current() -> Sweep | None:
    """The sweep that this process carries out, if any."""
    return _sweep


def ends(folder: Path) -> list[RunEnd]:
    """Ends of a sweep's runs so far, in the order of their numbers."""
    files = sorted((folder / _ENDS).glob("*.json"), key=lambda file: int(file.stem))
    return [RunEnd(**strict_json.read(file)) for file in files]


def exit_code(sweep: Sweep) -> ExitCode:
    """The exit code of the first run of the sweep that failed or was refused; without one, of a run that diverged.

    A search treats a diverged run as an ordinary result, as long as one run completed.
    """
    codes = [ExitCode(end.code) for end in ends(sweep.folder)]
    if failed := [code for code in codes if code not in (ExitCode.COMPLETED, ExitCode.DIVERGED)]:
        return failed[0]
    if ExitCode.DIVERGED in codes and not (sweep.objective and ExitCode.COMPLETED in codes):
        return ExitCode.DIVERGED
    return ExitCode.COMPLETED


class SweepReport(Callback):
    """Begins the sweep, names its runs, prints which one begins, and compares them after the sweep."""

    def __init__(self) -> None:
        self._total: int | None = None

    @override
    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        words, params = list(config.hydra.overrides.task), config.hydra.sweeper.get("params")
        # not every sweeper varies settings itself
        swept = {str(name): value for name, value in params.items()} if isinstance(params, DictConfig) else {}
        given = {each.key_or_group for each in overrides_of(words)}
        replaced = {name for name in swept if name not in given and chosen_by(name) in set(map(chosen_by, given))}
        with read_write(config), open_dict(config):
            for name in replaced:  # a format that the words choose by another name, which the sweeper does not know
                del swept[name], config.hydra.sweeper.params[name]
        try:
            self._begin(config, words, swept)
        except (ConfigError, OSError, OmegaConfBaseException) as error:
            refused = error if isinstance(error, ConfigError) else directory_error(error)
            if refused is None:
                raise
            # Hydra turns another exception of a callback into a warning and continues
            raise SystemExit(report_error(refused, ExitCode.WRONG_USAGE)) from error
        same = ",".join(f"'{name}'" for name in constant(words, swept))
        with read_write(config), open_dict(config):
            config.hydra.overrides.hydra.append(f"hydra.job.config.override_dirname.exclude_keys=[{same}]")

    def _begin(self, config: DictConfig, words: Sequence[str], swept: Mapping[str, object]) -> None:
        check_hydra(config.hydra)
        check_presets_swept([_search_path(config), *words])
        searches = objective.searches(config)
        begin(
            Path(config.hydra.sweep.dir),
            objective.column_of(config) if searches else None,
            local=has_local_runs(config.hydra.launcher),
        )
        if not searches:
            self._total = number_of_runs(words, swept)
        else:
            if config.eval.every_epochs == 0:
                raise ConfigError("eval.every_epochs=0: no run would be evaluated, so nothing can be optimized")
            # a grid may have fewer runs than requested
            is_grid = "grid" in str(config.hydra.sweeper.get("sampler")).lower()
            self._total = None if is_grid else config.hydra.sweeper.get("n_trials")
        if self._total == 0:
            raise ConfigError(f"--multirun {' '.join(words)}: no run; a glob or range in it has no values")

    @override
    def on_job_start(self, config: DictConfig, *, task_function: TaskFunction, **kwargs: Any) -> None:
        job = config.hydra.job
        if "num" not in job or not outer_launcher.leads():
            return
        total = f" of {self._total}" if self._total else ""
        print(f"\nrun {job.num + 1}{total}: {without_names(job.override_dirname)}", flush=True)

    @override
    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        check()
        show()


def show() -> None:
    """Shows the runs of this process's sweep side by side, if there are any."""
    sweep = current()
    if sweep is None or find_spec("pipetrain.reporting") is None:
        return
    # from here on torch is needed, which takes seconds to import
    from pipetrain.reporting.sweep import comparison, sweep_tables
    from pipetrain.reporting.sweep.compared_run import ComparedRun

    folder = sweep.folder
    statuses = {ExitCode.WRONG_USAGE: "refused", ExitCode.FAILED: "failed"}
    refused = [
        ComparedRun(Path(end.path), status, "ended before it started (see above)", end.settings, end.asked)
        for end in ends(folder)
        if (status := statuses.get(ExitCode(end.code))) and not _began(RunDirectory(Path(end.path)), sweep)
    ]
    if not outer_launcher.leads() or not (refused or runs_in(folder)):
        return
    found = comparison.collect([folder], {}, refused)
    known = any(sweep.objective in run.values for group in found.groups for run in group.runs)
    compared = comparison.ranked(found, sweep.objective if known else None)
    print(f"\n{sweep_tables.text(compared)}\n")
    if stopped_by(folder):
        print(*_saved(folder), sep="\n")
    elif runs_in(folder):
        quoted = shlex.quote(str(folder))
        print(f"next: pipetrain report runs {quoted} -o comparison, tensorboard --logdir {quoted}", flush=True)


def _saved(folder: Path) -> list[str]:
    """Lines on what each run of an interrupted sweep saved, and on how to continue."""
    from pipetrain.runner.tracking import summary
    from pipetrain.runner.training.checkpoint import store

    lines = []
    for run in runs_in(folder):
        found = summary.read_undamaged(run)
        if found is None or found["status"] == "interrupted":
            own = store.checkpoints(run.path)
            lines.append(f"{run.path.name}: {f'step {store.step_of(own[-1])}' if own else 'nothing'} is saved")
    again = f"hydra.sweep.dir={shlex.quote(str(folder))} resume=auto"
    return [*lines, f"go on from there with the same command and {again}"]


def _began(run: RunDirectory, sweep: Sweep) -> bool:
    """True if a run has begun in this sweep, which is when it writes its settings."""
    with suppress(OSError):
        return run.config.stat().st_mtime >= sweep.began_at
    return False


def _search_path(config: DictConfig) -> str:
    """The setting by which the folders of `--config-dir` and `hydra.searchpath` are searched."""
    sources = config.hydra.runtime.config_sources
    return search_path(each.path for each in sources if each.schema == "file" and each.provider != "main")


def constant(words: Sequence[str], swept: Mapping[str, object]) -> list[str]:
    """The given settings that are the same in all runs; `swept` are those that the sweeper itself varies, by name."""
    given = overrides_of(words)
    names = {each.key_or_group for each in given}
    given += overrides_of([f"{name}={value}" for name, value in swept.items() if name not in names])
    return [each.key_or_group for each in given if not each.is_sweep_override()]


def number_of_runs(words: Sequence[str], swept: Mapping[str, object]) -> int | None:
    """Number of runs of Hydra's own sweeper; None if a word needs another sweeper."""
    parsed = overrides_of([*(f"{name}={value}" for name, value in swept.items()), *words])
    last = {each.key_or_group: each for each in parsed}
    if any(each.is_sweep_override() and not each.is_discrete_sweep() for each in last.values()):
        return None
    return prod(len(list(each.sweep_string_iterator())) for each in last.values() if each.is_sweep_override())
