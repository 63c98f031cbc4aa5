"""Starting point of a run: the checkpoint that `resume` asks for, and the checks that this run may continue it."""

import contextlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipetrain.engine.errors import ConfigError, as_configured
from pipetrain.runner.config.instantiate import OBJECT
from pipetrain.runner.config.schema import TARGET
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.tracking import summary
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.tracking.run_lock import owner_of
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.progress import TrainingState
from pipetrain.runner.training.checkpoint.writer import remove_leftovers
from pipetrain.runner.training.components import Components
from pipetrain.runner.training.early_stopping import EarlyStopping
from pipetrain.runner.training.settings_diff import Difference, changes_since, identity_settings

_STATELESS = ("optimizer.lr", "optimizer.clip_norm")
"""Settings of the optimizer that need no other state."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def find_checkpoint(settings: Settings, run: RunDirectory) -> tuple[Path | None, list[str]]:
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
    faults = [f"{fault}; an earlier checkpoint takes its place" for fault in notes]
    return folder, [*faults, *_check_settings(settings, folder)]


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
        if completed(candidate):
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


def completed(run: RunDirectory) -> bool:
    """True if the summary of a run says that it completed; a damaged summary does not."""
    return (summary.read_undamaged(run) or {}).get("status") == "completed"


def _check_ended(setting: str, run: RunDirectory) -> None:
    if owner := owner_of(run.path):
        raise ConfigError(f"{setting}: {run} is still running ({owner}); wait for its end")


def _check_settings(settings: Settings, folder: Path) -> list[str]:
    """A note on the settings that differ from those of the checkpoint.

    Raises:
        ConfigError: one of them must stay.
    """
    source, progress = store.run_of(folder), store.load_progress(folder)
    names = [Difference(group, progress[group], settings.choices[group]) for group in ("model", "dataset")]
    changes = changes_since(folder, settings)
    before = store.load_config(folder)["settings"]
    targets = {name: section.get(TARGET) for name, section in before.items() if isinstance(section, Mapping)}
    for each in (*(each for each in names if each.old != each.new), *changes):
        if each.why_fixed:
            old, new = as_configured(each.old), as_configured(each.new)
            if (kind := str(targets.get(each.setting))).startswith(OBJECT):
                raise ConfigError(
                    f"resume={settings.resume}: a Python program gave {source} its {each.setting}, an object of "
                    f"{kind.removeprefix(OBJECT)}; pipetrain.run([..., 'resume=...'], {each.setting}=...) resumes it"
                )
            raise ConfigError(
                f"resume={settings.resume}: {source} was trained with {each.setting}={old}, but this run has "
                f"{each.setting}={new}, and {each.why_fixed}; a resumed run takes no settings from there: give "
                f"{each.setting}={old} again, or leave out resume"
            )
    notes = [f"other settings than {source} had: {', '.join(map(str, changes))}"] if changes else []
    if any(each.setting == "train.ema" and each.old is None for each in changes):
        notes.append(f"train.ema={settings.train.ema}: averages start with the weights of {folder}, which has none")
    return notes


def check_start(folder: Path, run: RunDirectory, components: Components) -> tuple[bool, list[str]]:
    """Checks a checkpoint against the data set, the model and the length of the run that continues it.

    Returns:
        True if nothing is left to run or to write; and a note on what is left of a run that has ended.

    Raises:
        ConfigError: the run cannot continue from the checkpoint, or has no steps left.
    """
    settings, timetable = components.settings, components.timetable
    progress, changes = store.load_progress(folder), changes_since(folder, settings)
    store.check_vocabulary(folder, components.data.dataset)
    before = progress.get("steps_per_epoch", timetable.steps_per_epoch)
    if before != timetable.steps_per_epoch:
        divided = next((str(each) for each in changes if each.setting == "train.microbatches"), None)
        cause = "the data set has changed" if divided is None else f"{divided} leaves out the last, short minibatch"
        raise ConfigError(
            f"dataset: an epoch has {timetable.steps_per_epoch} steps now, and had {before} when {folder} was saved: "
            f"{cause}; start a new run without resume"
        )
    if not any(each.changes_data for each in changes):
        loaders = {"train": components.data.train, "eval": components.data.evaluation}
        store.check_data(folder, loaders, "or start a new run without resume")
    contents.whole_state(folder, components.chain)
    if any(each.setting.startswith("optimizer.") and each.setting not in _STATELESS for each in changes):
        contents.check_optimizer(folder, settings.optimizer, components.device)
    state = TrainingState.of(progress, settings.train.target, timetable, EarlyStopping.of(settings))
    way_on = "raise train.epochs or train.max_steps"
    if state.stopped_early(timetable) is not None:
        way_on = "raise train.patience"
    elif state.reached is not None:
        way_on = f"it has reached train.target={as_configured(settings.train.target)}: set another, or null"
    nothing_to_do = (
        f"resume={settings.resume}: {folder} is at step {state.step}, and this run ends at step "
        f"{min(state.step, timetable.total_steps)}; {way_on}"
    )
    if state.step > timetable.total_steps:
        raise ConfigError(nothing_to_do)
    if not state.ended(timetable):
        due = [f"the evaluation after step {state.step}, which was interrupted, comes first"]
        return False, due if state.evaluation_due else []
    source = store.home_of(folder)
    if source is not None and completed(source):
        others = [str(each) for each in changes if each.changes_weights]
        if settings.resume == "auto" and source.path == run.path.resolve() and not others:
            return True, []
        had = f"; it was completed with other settings ({', '.join(others)})" if others else ""
        raise ConfigError(nothing_to_do + had)
    missing = "the evaluation and the summary" if state.evaluation_due else "the summary"
    return False, [f"all {state.step} steps are done; still missing: {missing}"]
