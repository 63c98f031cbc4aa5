"""Starting point of a run: the checkpoint that `resume` asks for, and the checks that this run may continue it."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError, as_configured
from pipetrain.engine.models.chain import LayerChain
from pipetrain.runner.config.instantiate import OBJECT
from pipetrain.runner.config.schema import TARGET
from pipetrain.runner.config.settings import ModelSettings, Settings
from pipetrain.runner.config.settings_diff import Difference, changes_since, identity_settings
from pipetrain.runner.tracking import summary
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.run_lock import owner_of
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.initial_weights import InitialWeights, initial_weights
from pipetrain.runner.training.checkpoint.progress import TrainingState
from pipetrain.runner.training.checkpoint.writer import remove_leftovers
from pipetrain.runner.training.components.data import Data
from pipetrain.runner.training.planned_run import PlannedRun
from pipetrain.runner.training.timetable import Timetable

_STATELESS = ("optimizer.lr", "optimizer.clip_norm")
"""Settings of the optimizer that need no other state."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


class Resumption(NamedTuple):
    """The checkpoint that a run continues from, as it was read once; `changes` are of the settings since."""

    folder: Path
    progress: Mapping[str, Any]
    config: Mapping[str, Any]
    changes: Sequence[Difference]


def find_checkpoint(settings: Settings, run: RunDirectory) -> tuple[Resumption | None, list[str]]:
    """The checkpoint to continue from, with notes for the user; None for a fresh start.

    `auto` looks in this run's own directory, then next to it for the newest run of an identical configuration. If the
    newest checkpoint of a run is damaged, the newest whole one is used.

    Raises:
        ConfigError: the named run has no whole checkpoint or is still alive, or a setting differs that must stay.
    """
    if settings.resume is None:
        return None, []
    remove_leftovers(run.path)
    folder, notes = _automatic(settings, run) if settings.resume == "auto" else (_named(settings.resume, run), [])
    if folder is None:
        return None, notes
    progress, config = store.load_progress(folder), store.load_config(folder)
    found = Resumption(folder, progress, config, changes_since(config, settings))
    faults = [f"{fault}; an earlier checkpoint takes its place" for fault in notes]
    return found, [*faults, *_check_settings(settings, found)]


def _named(resume: str, run: RunDirectory) -> Path:
    if not resume or not Path(resume).is_dir():
        raise ConfigError(
            f"resume={resume}: no such folder; name a run directory or a checkpoint in one, or write auto"
        )
    folder = store.newest_undamaged(Path(resume))
    source = store.home_of(folder)
    if source is not None and source.path != run.path.resolve():
        _check_ended(f"resume={resume}", source)
    return folder


def _automatic(settings: Settings, run: RunDirectory) -> tuple[Path | None, list[str]]:
    """The checkpoint with the faults of newer ones; or None with a note on the reason, if there is one to give."""
    if not store.checkpoints(run.path):
        return _next_to(settings, run)
    folder, faults = store.newest_whole(run.path)
    if folder is None:
        raise ConfigError(f"resume=auto: no checkpoint here is whole: {faults[0]}; start again without resume")
    return folder, faults


def _next_to(settings: Settings, run: RunDirectory) -> tuple[Path | None, list[str]]:
    """From the newest run of this configuration next to `run`; a run without a checkpoint is skipped."""
    wanted = identity_settings(settings.stored)
    for candidate in _newest_first(run):
        started = store.checkpoints(candidate.path) or owner_of(candidate.path)
        if not started or _identity_of(candidate.path, candidate.config.stat().st_mtime_ns) != wanted:
            continue
        _check_ended("resume=auto", candidate)
        if summary.is_completed(candidate):
            return None, [f"resume=auto: {candidate} has completed this configuration"]
        folder, faults = store.newest_whole(candidate.path)
        if folder is not None:
            return folder, faults
    return None, []


def _newest_first(run: RunDirectory) -> list[RunDirectory]:
    """Other runs in the folder of `run`, newest first by the time at which their configuration was written."""
    # the default directories are outputs/DATE/TIME
    day = run.path.parent
    days = day.parent.glob("????-??-??") if _DATE.fullmatch(day.name) else [day]
    written: dict[RunDirectory, float] = {}
    for path in (path for each in days for path in each.glob("*") if path != run.path):
        other = RunDirectory(path)
        with contextlib.suppress(OSError):  # another user's
            if other.config.is_file():
                written[other] = other.config.stat().st_mtime
    return sorted(written, key=written.__getitem__, reverse=True)


@cache
def _identity_of(path: Path, _written_at: int) -> Mapping[str, Any] | None:
    """Settings that identify a run's configuration; None if its file is damaged: it may be another program's.

    It is read once: each run of a sweep looks at all that ended before it.
    """
    with contextlib.suppress(ConfigError):
        config: Any = OmegaConf.to_container(RunDirectory(path).stored_config())
        return identity_settings(config)
    return None


def _check_ended(setting: str, run: RunDirectory) -> None:
    if owner := owner_of(run.path):
        raise ConfigError(f"{setting}: {run} is still running ({owner}); wait for its end")


def _check_settings(settings: Settings, found: Resumption) -> list[str]:
    """A note on the settings that differ from those of the checkpoint.

    Raises:
        ConfigError: one of them must stay.
    """
    folder, progress, config, changes = found
    source = store.run_of(folder)
    names = [Difference(group, progress[group], settings.choices[group]) for group in ("model", "dataset")]
    for each in (*(each for each in names if each.old != each.new), *changes):
        if each.why_fixed:
            raise ConfigError(f"resume={settings.resume}: {_refusal(each, source, config)}")
    notes = [f"settings changed since {source}: {', '.join(map(str, changes))}"] if changes else []
    if any(each.setting == "train.ema" and each.old is None for each in changes):
        notes.append(f"train.ema={settings.train.ema}: averages start with the weights of {folder}, which has none")
    return notes


def _refusal(each: Difference, source: RunDirectory, config: Mapping[str, Any]) -> str:
    """Why a setting must stay, and how it can."""
    section = config["settings"].get(each.setting)
    target = str(section.get(TARGET)) if isinstance(section, Mapping) else ""
    if target.startswith(OBJECT):
        return (
            f"a Python program gave {source} its {each.setting}, an object of {target.removeprefix(OBJECT)}; "
            f"pipetrain.run([..., 'resume=...'], {each.setting}=...) resumes it"
        )
    old, new = as_configured(each.old), as_configured(each.new)
    return (
        f"{source} was trained with {each.setting}={old}, but this run has {each.setting}={new}, and {each.why_fixed}; "
        f"settings are not taken from there: give {each.setting}={old} again, or leave out resume"
    )


class Start(NamedTuple):
    """Where a run starts.

    Attributes:
        finished: True if nothing is left to run or to write.
        weights: that the stages start from; None if they are drawn, or are those of the checkpoint that it resumes.
        origin: path and hash of the weights that the first run started from; None if they were drawn.
        notes: for the user, one line each.
    """

    finished: bool = False
    weights: InitialWeights | None = None
    origin: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()


def new_start(model: ModelSettings, run: RunDirectory, chain: LayerChain) -> Start:
    """The start of a run that resumes no checkpoint.

    Raises:
        ConfigError: `model.weights` names no weights of this model, or a file of the run's own directory.
    """
    # other processes of an outer launcher learn from the first one what is loaded
    weights = initial_weights(model, chain) if outer_launcher.leads() else None
    if weights is None:
        return Start()
    if weights.path.is_relative_to(run.checkpoints.resolve()):
        raise ConfigError(
            f"model.weights={model.weights}: lies in hydra.run.dir={run}, whose files a new run moves "
            "away; use another hydra.run.dir, or continue that run with resume"
        )
    return Start(weights=weights, origin={"path": str(weights.path), "sha256": weights.sha256}, notes=weights.notes)


def resumed(found: Resumption, run: RunDirectory, settings: Settings, planned: PlannedRun, device: str) -> Start:
    """The start of a run that continues from a checkpoint.

    Raises:
        ConfigError: it cannot continue from there, or has no steps left.
    """
    folder, progress, _, changes = found
    _check_data(found, planned.data)
    contents.check_model(folder, planned.chain)
    if any(each.setting.startswith("optimizer.") and each.setting not in _STATELESS for each in changes):
        contents.check_optimizer(folder, settings.optimizer, device)
    timetable = planned.timetable
    state = TrainingState.of(progress, timetable, settings.train, settings.checkpoint.metric)
    over = (
        f"resume={settings.resume}: {folder} is at step {state.step}, and this run ends at step "
        f"{min(state.step, timetable.total_steps)}; {_how_to_continue(state, timetable)}"
    )
    in_place = run if settings.resume == "auto" else None
    finished = _is_finished(found, state, timetable, over, in_place)
    left = [] if finished else _what_is_left(state, timetable)
    return Start(finished, origin=progress.get("initial_weights"), notes=left)


def _check_data(found: Resumption, data: Data) -> None:
    """Checks that a run reads the data set that a checkpoint was trained with, unless its settings say otherwise."""
    folder, progress, _, changes = found
    store.check_vocabulary(folder, progress, data.dataset)
    steps = len(data.train)
    before = progress.get("steps_per_epoch", steps)
    if before != steps:
        divided = next((str(each) for each in changes if each.setting == "train.microbatches"), None)
        cause = "the data set has changed" if divided is None else f"{divided} leaves out the last, short minibatch"
        raise ConfigError(
            f"dataset: an epoch has {steps} steps now, and had {before} when {folder} was saved: {cause}; start a new "
            "run without resume"
        )
    if not any(each.changes_data for each in changes):
        store.check_data(folder, progress, data.loaders, "or start a new run without resume")


def _is_finished(
    found: Resumption, state: TrainingState, timetable: Timetable, over: str, in_place: RunDirectory | None
) -> bool:
    """True if nothing is left to run or to write, in the run `in_place`, which may continue itself.

    Raises:
        ConfigError: any other run would have nothing to do; `over` says so.
    """
    if state.step > timetable.total_steps:
        raise ConfigError(over)
    source = store.home_of(found.folder)
    if not state.ended(timetable) or source is None or not summary.is_completed(source):
        return False
    if others := [str(each) for each in found.changes if each.changes_weights]:
        raise ConfigError(f"{over}; it was completed with other settings ({', '.join(others)})")
    if in_place is not None and source.path == in_place.path.resolve():
        return True
    raise ConfigError(over)


def _what_is_left(state: TrainingState, timetable: Timetable) -> list[str]:
    """A note on what a run still has to write, or to evaluate first."""
    if state.ended(timetable):
        missing = "the evaluation and the summary" if state.evaluation_due else "the summary"
        return [f"all {state.step} steps are done; still missing: {missing}"]
    due = f"the evaluation after step {state.step}, which was interrupted, comes first"
    return [due] if state.evaluation_due else []


def _how_to_continue(state: TrainingState, timetable: Timetable) -> str:
    """The setting that lets a finished run continue, as the end of an error message."""
    if state.stopped_early(timetable) is not None:
        return "raise train.patience"
    if state.reached is not None:
        return f"it has reached train.target={as_configured(state.target)}: set another, or null"
    return "raise train.epochs or train.max_steps"
