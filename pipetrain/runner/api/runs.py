"""`pipetrain.run` and `pipetrain.sweep`: runs from Python, of the command's words and of objects."""

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn

from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError, DataError, ExitCode, InterruptedRunError, InvariantError, RunError
from pipetrain.engine.failure import USERS_ERRORS
from pipetrain.engine.optim.stage_optimizer import common_rate
from pipetrain.runner.api.finished_run import Run
from pipetrain.runner.api.one_run import carried_out, end_sweep_in_mlflow, newest_step, prepared, way_on_from
from pipetrain.runner.api.surroundings import kept, logged
from pipetrain.runner.config.composition import (
    Composition,
    check_presets_swept,
    combinations,
    folder_name,
    overrides_of,
    settings_of,
    with_choices_of,
)
from pipetrain.runner.config.given_objects import by_section, custom_choices, put_into
from pipetrain.runner.config.hydra_errors import CONFIGURATION_ERRORS
from pipetrain.runner.config.instantiate import pickled
from pipetrain.runner.launch.signals import interruptible
from pipetrain.runner.terminal.error_line import message, report_error
from pipetrain.runner.tracking import summary
from pipetrain.runner.tracking.files import new_folder
from pipetrain.runner.tracking.run_directory import RunDirectory, check_own
from pipetrain.runner.tracking.run_lock import locked
from pipetrain.runner.tracking.trackers.identity import MLFLOW_PARENT


def run(
    words: Sequence[str] = (),
    *,
    path: str | Path | None = None,
    progress: bool = True,
    config_dir: str | Path | None = None,
    **objects: Any,
) -> Run:
    """Trains a model as `pipetrain run` does, and returns the results; a run that diverges has them, too.

    Objects replace the targets of sections, and are copied, except data sets and callbacks. A model that is given
    begins with its own weights; other models draw theirs from the seed.

    Args:
        words: settings and choices of the command line, such as `["method=pipedream", "train.epochs=3"]`.
        path: the run directory; by default `hydra.run.dir`, a new folder in `outputs/`.
        progress: True to show the plan, a bar and the summary.
        config_dir: folder of choices of your own, as `--config-dir`.
        objects: `model` (a module or a `LayerChain`), `dataset` (an object with `train` and `eval`), `method`,
            `schedule`, `partition`, `loss`, `optimizer` (a function of parameters), `lr_schedule` (a
            `LearningRateSchedule`, or a function of an optimizer), `metrics` (a mapping of names to metrics),
            `callbacks` (a list of `Callback`s), `messages` (a mapping of directions to `MessageFormat`s).

    Raises:
        ConfigError: a setting or an object cannot work; no process was started, and no file overwritten.
        DataError: the data set's own code failed.
        RunError: the run failed.
        KeyboardInterrupt: a signal ended the run, which has saved a checkpoint if it could.
    """
    with kept(), _own_errors():
        given, words = by_section(objects), _checked(words)
        if len(list(islice(combinations(words), 2))) > 1:
            raise ConfigError(f"{' '.join(words)}: several values; pipetrain.sweep makes a run of each combination")
        composition = _composed(words, given, config_dir)
        return _carried_out(composition, _folder(composition, "run", path), given, progress=progress)


class Sweep(list[Run]):
    """The runs of a sweep, in the order of the command, also those that were refused or failed.

    Attributes:
        path: the folder of all runs, which `pipetrain report runs` compares.
        table: a row of each run, which `pandas.DataFrame` takes: its folder, the settings that vary, its status, and
            metrics such as `final_top1` and `best_top1`.
    """

    def __init__(self, path: Path, runs: Iterable[Run], table: list[dict[str, Any]]) -> None:
        super().__init__(runs)
        self.path, self.table = path, table


def sweep(
    words: Sequence[str],
    *,
    path: str | Path | None = None,
    progress: bool = True,
    config_dir: str | Path | None = None,
    **objects: Any,
) -> Sweep:
    """A run for every combination of values, such as `["method=gpipe,pipedream", "seed=0,1"]`, one after the other.

    The settings of all runs are checked before the first one begins.

    Args:
        words: settings and choices, some with several values.
        path: the folder of all runs; by default `hydra.sweep.dir`, a new folder in `multirun/`.
        progress: as of `run`.
        config_dir: as of `run`.
        objects: as of `run`, for every run.

    Raises:
        ConfigError: a setting or an object cannot work.
        KeyboardInterrupt: a signal ended a run, and no other begins.
    """
    with kept(), _own_errors():
        given, words = by_section(objects), _checked(words)
        words = _with_params(words, given, config_dir)
        parsed = overrides_of(words)
        for word, each in zip(words, parsed, strict=True):
            if each.key_or_group.startswith(("hydra/sweeper", "hydra/launcher", "hydra.sweeper", "hydra.launcher")):
                raise ConfigError(
                    f"{word}: only the command `pipetrain run --multirun` uses other sweepers and launchers"
                )
        varied = [number for number, each in enumerate(parsed) if each.is_sweep_override()]
        combined = list(combinations(words))
        composed = [_composed(chosen, given, config_dir) for chosen in combined]
        for composition in composed:
            settings_of(composition.config, composition.choices)
        folder = _folder(composed[0], "sweep", path)
        runs, table = list[Run](), []
        with locked(folder), contextlib.ExitStack() as interrupted:
            check_own(folder / MLFLOW_PARENT)
            interrupted.callback(end_sweep_in_mlflow, folder, "interrupted")
            for number, (chosen, composition) in enumerate(zip(combined, composed, strict=True)):
                differing = sorted(chosen[i] for i in varied)
                if progress:
                    print(f"\nrun {number + 1} of {len(composed)}: {' '.join(differing)}", flush=True)
                name = folder_name(number, " ".join(differing))
                runs.append(_of_sweep(composition, folder / name, given, progress=progress))
                values = {parsed[i].key_or_group: overrides_of([chosen[i]])[0].value() for i in varied}
                table.append({"run": name, **values, "status": runs[-1].status, **_metrics(runs[-1].summary)})
            interrupted.pop_all()
            completed = all(each.status == "completed" for each in runs)
            end_sweep_in_mlflow(folder, "completed" if completed else "failed")
        return Sweep(folder, runs, table)


def _with_params(words: list[str], objects: Mapping[str, Any], config_dir: str | Path | None) -> list[str]:
    """The words, merged with what a preset sweeps (`hydra.sweeper.params`) as Hydra's sweeper merges them."""
    check_presets_swept(with_choices_of(None if config_dir is None else Path(config_dir), words))
    formats = [word for word in words if word.startswith("messages.")]  # which have names of their own
    varied = _composed(next(combinations(words)), objects, config_dir).varied(formats)
    return list({word.partition("=")[0]: word for word in (*varied, *words)}.values())


def _checked(words: Sequence[str]) -> list[str]:
    if outer_launcher.is_present():
        raise ConfigError("RANK is set: under an outer launcher, use the command: torchrun ... -m pipetrain run")
    if isinstance(words, str):
        raise ConfigError(f"{words!r}: must be a list of words, such as {words.split()}")
    return [str(word) for word in words]


def _composed(words: Sequence[str], objects: Mapping[str, Any], config_dir: str | Path | None) -> Composition:
    """The configuration of a run, with the objects' names in it."""
    named = {each.key_or_group for each in overrides_of(words)}
    words = [*custom_choices(objects, named), *words]
    composition = Composition.of(with_choices_of(None if config_dir is None else Path(config_dir), words))
    config = composition.config
    put_into(config, objects, named)
    if "optimizer" in objects and config.optimizer.lr is None:
        OmegaConf.update(config, "optimizer.lr", _rate_of(objects["optimizer"]))
    if config.executor.name != "simulated":
        for section, value in objects.items():
            pickled(section, value)
    return composition


def _rate_of(optimizer: Any) -> float:
    """The learning rate of a function's optimizer: the default of the function's `lr`, or else the optimizer's own."""
    try:
        common = common_rate(optimizer([nn.Parameter(torch.zeros(1, 1))]))
        taken = inspect.signature(optimizer).parameters.get("lr")
        return float(common if taken is None or taken.default is None else taken.default)
    except Exception as error:  # of the function's own
        raise ConfigError(
            "optimizer: must be a function of parameters that returns an optimizer, such as torch.optim.SGD: "
            f"{message(error)}"
        ) from error


def _folder(composition: Composition, kind: str, path: str | Path | None) -> Path:
    """The folder of a run or a sweep."""
    OmegaConf.register_new_resolver("new_folder", lambda name: str(new_folder(Path(name))), replace=True)
    return Path(composition.hydra[kind].dir if path is None else path).absolute()


def _carried_out(
    composition: Composition, folder: Path, objects: Mapping[str, Any], *, progress: bool, sweep: Path | None = None
) -> Run:
    run = RunDirectory(folder)
    with interruptible() as interruption, contextlib.ExitStack() as lock:
        lock.callback(run.remove_if_empty)  # once the lock is free
        job = prepared(composition, run, lock, objects, sweep=sweep, shows=progress)
        interruption.check()
        left: Mapping[str, Any] = {}
        if not job.finished:
            with logged(run):
                left = carried_out(
                    job, composition, interruption, lambda: f"resume={way_on_from(job)}", quiet=not progress
                )
        if left.get("status") == "interrupted":
            step = newest_step(job)
            saved = "before there was a checkpoint"
            if step is not None:
                saved = f"step {step} is saved; resume={way_on_from(job)} continues"
            raise InterruptedRunError(f"{left['reason']}; {saved}")
        if sweep is not None:
            interruption.check()  # however this run has ended, no other begins
        return Run(run.path, summary.read(run) or left, objects, _trusted=True)


def _of_sweep(composition: Composition, folder: Path, objects: Mapping[str, Any], *, progress: bool) -> Run:
    """A run whose failure does not end the sweep."""
    run = RunDirectory(folder)
    earlier = summary.read_undamaged(run)
    try:
        with _own_errors():
            return _carried_out(composition, folder, objects, progress=progress, sweep=folder.parent)
    except (ConfigError, DataError, RunError) as error:
        if progress:
            report_error(error, ExitCode.FAILED)
        left = summary.read_undamaged(run)
        if left is None or left == earlier:
            left = {"status": "refused", "reason": message(error)}
        return Run(folder, left, objects, _trusted=True)


def _metrics(found: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{kind}_{name}": value for kind in ("final", "best") for name, value in found.get(kind, {}).items()}


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """Raises errors of Hydra as ConfigError, and errors of a user's code as RunError."""
    try:
        yield
    except (ConfigError, DataError, RunError, InvariantError):
        raise
    except CONFIGURATION_ERRORS as error:
        raise ConfigError(message(error)) from error
    except USERS_ERRORS as error:
        raise RunError(message(error)) from error
