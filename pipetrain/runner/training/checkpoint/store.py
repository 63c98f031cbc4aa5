"""The checkpoints of a run: which there are, whether they are whole, which are best or asked for, which are removed."""

import contextlib
import math
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipetrain.data.files import strict_json
from pipetrain.data.fingerprint import difference, fingerprint_like
from pipetrain.data.interface import DataSet
from pipetrain.data.loader import Loader
from pipetrain.engine.errors import ConfigError, is_whole, one_line
from pipetrain.runner.config.schema import CheckpointConfig
from pipetrain.runner.tracking.evaluations import lower_is_better
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.stored_settings import stored_settings
from pipetrain.runner.training.checkpoint import manifest

PROGRESS, CONFIG = "progress.json", "config.json"
PARTIAL, OLD = ".partial", ".old"
"""Suffixes of a checkpoint that is being written, and of one that is being removed."""
_STEP = re.compile(r"step-\d+")


def load_progress(folder: Path) -> dict[str, Any]:
    """The progress that a checkpoint was saved with."""
    progress: dict[str, Any] = strict_json.read(folder / PROGRESS)
    return progress


def load_config(folder: Path) -> dict[str, Any]:
    """The configuration that a checkpoint was saved with: `settings`, as `Settings.stored` has them, and `choices`."""
    config: dict[str, Any] = strict_json.read(folder / CONFIG)
    return config


def check_vocabulary(folder: Path, progress: Mapping[str, Any], dataset: Any) -> None:
    """Raises a ConfigError if token ids have another meaning, as far as the progress and the data set record it."""
    before = progress.get("vocabulary_sha256")
    if before is not None and before != DataSet(dataset).vocabulary_sha256:
        raise ConfigError(
            f"dataset: its vocabulary differs from that of {folder}, so token ids mean other text; use the data set, "
            "text and vocabulary settings that the checkpoint was trained with"
        )


def check_data(folder: Path, progress: Mapping[str, Any], loaders: Mapping[str, Loader], way_on: str) -> None:
    """Raises a ConfigError if samples are not those of the run, as far as the checkpoint's progress records them.

    `loaders` have the names of their splits; `way_on` says what to do if the change of the data is meant.
    """
    recorded = progress.get("data", {})
    for name in recorded.keys() & loaders.keys():
        found = difference(fingerprint_like(recorded[name], loaders[name]), recorded[name])
        if found is not None:
            what, now, before = found
            raise ConfigError(
                f"dataset: {what} of its `{name}` is {now}, and was {before} for the run of {folder}; the data have "
                f"changed, or their order depends on the process (sort a set or a folder listing); {way_on}"
            )


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run directory, oldest first: all that were completed, damaged since or not."""
    folders = RunDirectory(run).checkpoints.glob("step-*")
    return sorted(path for path in folders if _STEP.fullmatch(path.name) and path.is_dir())


def is_checkpoint(folder: Path) -> bool:
    """True if this is the folder of a checkpoint, and not a run directory."""
    run = RunDirectory(folder)
    if not folder.is_dir() or run.config.exists() or run.checkpoints.exists():  # a run may be called step-2
        return False
    return _STEP.fullmatch(folder.name) is not None or (folder / PROGRESS).is_file()


def step_of(folder: Path) -> int:
    """Step of a checkpoint: from its name, or from its progress if it was renamed."""
    if _STEP.fullmatch(folder.name) is None:
        return int(load_progress(folder)["step"])
    return int(folder.name.removeprefix("step-"))


def run_of(folder: Path) -> RunDirectory:
    """The run directory that a checkpoint is in."""
    return RunDirectory(folder.resolve().parent.parent)  # `.` and a bare name say nothing of the run around


def home_of(folder: Path) -> RunDirectory | None:
    """The run directory that a checkpoint is in; None if it has left that, and what is around it is of another run."""
    run = run_of(folder)
    return run if folder.resolve().parent == run.checkpoints else None


def problem(folder: Path) -> str | None:
    """Why a checkpoint cannot be used, in one line that names the file; None if it can."""
    if fault := manifest.problem(folder):
        return fault
    listed = [entry.name for entry in manifest.entries(folder)]
    for name in (PROGRESS, CONFIG):
        if name not in listed:
            return f"{folder / name}: damaged: it is not in the manifest"
    try:
        fault = _progress_fault(load_progress(folder))
    except (ValueError, OSError) as error:
        fault = one_line(error)
    if fault is not None:
        return f"{folder / PROGRESS}: damaged: {fault}"
    with contextlib.suppress(ValueError, TypeError, KeyError, OSError):
        config = load_config(folder)
        if isinstance(config["settings"], dict) and isinstance(config["choices"], dict):
            return None
    return f"{folder / CONFIG}: damaged: it holds no settings"


def _progress_fault(progress: Any) -> str | None:
    if not isinstance(progress, Mapping):
        return "it holds no fields"
    if not is_whole(progress.get("step")) or progress["step"] < 0:
        return "its step is not a number of steps"
    wrong = [name for name in ("model", "dataset") if not isinstance(progress.get(name), str)]
    return f"its {wrong[0]} is not text" if wrong else None


def undamaged(folder: Path) -> Path:
    """The checkpoint, read as a whole; raises a ConfigError if it is damaged, with the newest before it that is not."""
    folder = folder.resolve()
    if (fault := problem(folder)) is None:
        return folder
    earlier = (path for path in reversed(checkpoints(run_of(folder).path)) if path.name < folder.name)
    whole = next((path for path in earlier if problem(path) is None), None)
    raise ConfigError(fault if whole is None else f"{fault}; the newest one before it that is whole is {whole}")


def newest_whole(run: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint of a run directory that is whole, if any, and the faults of those after it, a line each."""
    faults: list[str] = []
    for folder in reversed(checkpoints(run)):
        if (fault := problem(folder)) is None:
            return folder.resolve(), faults
        faults.append(fault)
    return None, faults


def newest_undamaged(folder: Path | str) -> Path:
    """The checkpoint `folder`, or the newest of a run directory; raises a ConfigError if it is damaged or missing."""
    path = Path(folder)
    if is_checkpoint(path):
        return undamaged(path)
    complete = checkpoints(path)
    if not complete:
        raise ConfigError(f"{folder}: no checkpoint here; a run directory has checkpoints/step-XXXXXXXX/")
    return undamaged(complete[-1])


def at_step(run: Path, step: int) -> Path:
    """The checkpoint of a run directory at `step`; raises a ConfigError if it is damaged, or there is none."""
    folder = RunDirectory(run).checkpoint(step)
    if not folder.is_dir():
        steps = ", ".join(str(step_of(path)) for path in checkpoints(run)) or "none"
        raise ConfigError(f"--step {step}: {run} has no checkpoint of that step; it has: {steps}")
    return undamaged(folder)


def best_first(folders: Sequence[Path], metric: str) -> list[Path]:
    """Checkpoints that were evaluated by `metric`, best first; of equal ones the earlier first."""
    ranked = []
    for folder in folders:
        metrics, lower = _evaluated(folder)
        value = metrics.get(metric, math.nan)
        if not math.isnan(value):
            ranked.append((value if metric in lower else -value, folder))
    return [folder for _, folder in sorted(ranked)]


def _evaluated(folder: Path) -> tuple[Mapping[str, float], Collection[str]]:
    """The metrics of a checkpoint, and the names of those that fall as the model improves."""
    try:
        progress = load_progress(folder)
        metrics = {name: strict_json.number(value) for name, value in progress["metrics"].items()}
        return metrics, lower_is_better(progress.get("lower_is_better", ()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # damaged, which is reported when it is used
        return {}, ()


def remove_expired(run: RunDirectory, keep: CheckpointConfig) -> None:
    """Removes the checkpoints that the settings do not keep; each is renamed first, so that none is ever partial.

    The newest stays, as a run resumes from it, and step 0, which exists only on request.
    """
    if keep.keep_last is None and keep.keep_best is None:
        return
    folders = checkpoints(run.path)
    kept = {*folders[-(keep.keep_last or 1) :], *best_first(folders, keep.metric)[: keep.keep_best or 0]}
    for folder in folders:
        if folder not in kept and step_of(folder):
            with contextlib.suppress(OSError):  # what stays only takes space
                shutil.rmtree(folder.rename(folder.with_name(folder.name + OLD)))


@dataclass(frozen=True)
class Selection:
    """The checkpoint that a command asks for.

    Attributes:
        path: a run directory, or a checkpoint in one.
        step: step of the checkpoint; None: the newest.
        metric: the metric of the best one; None: the run's own `checkpoint.metric`.
        raw: True to use the weights themselves where a checkpoint has averages of them, too.
    """

    path: Path
    step: int | None = None
    best: bool = False
    metric: str | None = None
    raw: bool = False

    @property
    def run(self) -> RunDirectory:
        """The run of the checkpoint; raises a ConfigError if the checkpoint has left its run directory."""
        if not is_checkpoint(self.path):
            return RunDirectory(self.path)
        if (run := home_of(self.path)) is None:
            run = run_of(self.path)
            raise ConfigError(
                f"{self.path}: is not in the folder {run.checkpoints.name} of a run directory, whose "
                f"{run.config.name} says what to build; move it back there"
            )
        return run

    def checkpoint(self) -> Path:
        """The checkpoint, every file of which is whole; raises a ConfigError if there is none, or it is damaged."""
        if self.metric is not None and not self.best:
            raise ConfigError(f"--metric {self.metric}: requires --best")
        if is_checkpoint(self.path) and (self.step is not None or self.best):
            flag = "--best" if self.best else f"--step {self.step}"
            raise ConfigError(f"{self.path} {flag}: this is a checkpoint already; name its run directory instead")
        if not self.best:
            return newest_undamaged(self.path) if self.step is None else at_step(self.path, self.step)
        metric = self.metric or stored_settings(self.run, calls=()).checkpoint.metric
        folders = checkpoints(self.path)
        ranked = best_first(folders, metric)
        if not ranked:
            known = ", ".join(sorted({name for folder in folders for name in _evaluated(folder)[0]})) or "none"
            raise ConfigError(f"--best: no checkpoint of {self.path} was evaluated by {metric}; available: {known}")
        return undamaged(ranked[0])
