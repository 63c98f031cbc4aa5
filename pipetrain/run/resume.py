"""Starting point of a run: the checkpoint that `resume` asks for, and the checks that this run may continue it."""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError, as_configured
from pipetrain.models.chain import LayerChain
from pipetrain.run.checkpoint import store
from pipetrain.run.checkpoint.compatibility import check_data, check_optimizer, check_vocabulary, check_weights
from pipetrain.run.checkpoint.writer import remove_leftovers
from pipetrain.run.settings_diff import Difference, differences, identity_settings
from pipetrain.run.timetable import Timetable
from pipetrain.run.trainer import evaluation_due, target_reached
from pipetrain.tracking import strict_json, summary
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.run_lock import owner_of

_STATELESS = ("optimizer.lr", "optimizer.clip_norm")
"""Settings of the optimizer that need no other state."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True)
class StartPoint:
    """Starting point of a run: its first step, the step of a checkpoint, or its end.

    Attributes:
        checkpoint: the checkpoint to continue from; None for a fresh start.
        notes: for the user.
        differences: settings of the checkpoint that differ from this run's.
        step: number of steps that are done.
        finished: True if the run is complete, its summary included.
    """

    checkpoint: Path | None = None
    notes: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    step: int = 0
    finished: bool = False

    @property
    def source(self) -> RunDirectory:
        """The run that the checkpoint is of."""
        assert self.checkpoint is not None
        return RunDirectory(self.checkpoint.parent.parent)


def find_start(settings: Settings, run: RunDirectory) -> StartPoint:
    """The checkpoint to continue from.

    `auto` looks in this run's own directory, then next to it for the newest run of an identical configuration. Where
    the newest checkpoint of a run is damaged, the newest whole one takes its place.

    Raises:
        ConfigError: the named run has no whole checkpoint or is still alive, or a setting differs that a run keeps.
    """
    if settings.resume is None:
        return StartPoint()
    remove_leftovers(run.path)
    found = _automatic(settings, run) if settings.resume == "auto" else _named(settings.resume, run)
    return found if found.checkpoint is None else _compared(settings, found)


def _named(resume: str, run: RunDirectory) -> StartPoint:
    if not resume or not Path(resume).is_dir():
        raise ConfigError(
            f"resume={resume}: no such folder; name a run directory or a checkpoint in one, or write auto"
        )
    found = StartPoint(store.newest_undamaged(resume))
    if found.source.path != run.path.resolve():
        _check_ended(f"resume={resume}", found.source)
    return found


def _automatic(settings: Settings, run: RunDirectory) -> StartPoint:
    if store.checkpoints(run.path):
        found = _newest_whole(run)
        if found.checkpoint is None:
            raise ConfigError(
                f"resume=auto: no checkpoint here is whole: {found.notes[0]}; start afresh without resume"
            )
        return found
    return _beside(settings, run)


def _beside(settings: Settings, run: RunDirectory) -> StartPoint:
    """The newest run of this configuration next to `run` decides; a run without a checkpoint is skipped."""
    wanted = identity_settings(settings.stored)
    for candidate in _newest_first(run):
        left = store.checkpoints(candidate.path) or owner_of(candidate.path)
        if not left or _comparable(candidate.path, candidate.config.stat().st_mtime_ns) != wanted:
            continue
        _check_ended("resume=auto", candidate)
        if completed(candidate):
            return StartPoint(notes=[f"resume=auto: {candidate} has completed this configuration"])
        if (found := _newest_whole(candidate)).checkpoint is not None:
            return found
    return StartPoint()


def _newest_first(run: RunDirectory) -> list[RunDirectory]:
    # the default directories are outputs/DATE/TIME
    day = run.path.parent
    days = day.parent.glob("????-??-??") if _DATE.fullmatch(day.name) else [day]
    others = (RunDirectory(path) for each in days for path in each.glob("*") if path != run.path)
    written = {each: at for each in others if (at := _written_at(each)) is not None}
    return sorted(written, key=lambda each: written[each], reverse=True)


def _written_at(run: RunDirectory) -> float | None:
    """Time at which the configuration was written; None if it is missing, or is another user's and cannot be read."""
    with contextlib.suppress(OSError):
        if run.config.is_file():
            return run.config.stat().st_mtime
    return None


@cache
def _comparable(path: Path, _written_at: int) -> Mapping[str, Any] | None:
    """Settings that identify a run's configuration; None if its file is damaged: it may be another program's.

    It is read once: each run of a sweep looks at all that ended before it.
    """
    with contextlib.suppress(ConfigError):
        config: Any = OmegaConf.to_container(RunDirectory(path).stored_config())
        return identity_settings(config)
    return None


def completed(run: RunDirectory) -> bool:
    """True if the summary of a run says that it completed; a damaged summary does not."""
    with contextlib.suppress(ConfigError):
        return (summary.read(run) or {}).get("status") == "completed"
    return False


def _check_ended(setting: str, run: RunDirectory) -> None:
    if owner := owner_of(run.path):
        raise ConfigError(f"{setting}: {run} is still running ({owner}); wait for its end")


def _newest_whole(run: RunDirectory) -> StartPoint:
    """The newest checkpoint without a problem; what is wrong with those after it are the notes."""
    found = store.newest_whole(run.path)
    instead = "" if found.folder is None else "; an earlier checkpoint takes its place"
    return StartPoint(found.folder, [f"{each}{instead}" for each in found.faults])


def _compared(settings: Settings, found: StartPoint) -> StartPoint:
    """With what differs between this run and the one that it continues.

    Raises:
        ConfigError: a setting that a run keeps.
    """
    assert found.checkpoint is not None
    source = found.source
    _check_names(settings, found)
    before = store.load_config(found.checkpoint)
    now = json.loads(strict_json.dumps(settings.stored))  # as it would be read back
    others = differences(before.settings, now, (before.choices, settings.choices))
    for each in others:
        if each.why_fixed:
            raise ConfigError(_refusal(settings, source, each))
    notes = [f"other settings than {source} had: {', '.join(map(str, others))}"] if others else []
    return replace(found, notes=[*found.notes, *notes], differences=others)


def _check_names(settings: Settings, found: StartPoint) -> None:
    assert found.checkpoint is not None
    progress = store.load_progress(found.checkpoint)
    for group in ("model", "dataset"):
        difference = Difference(group, progress[group], settings.choices[group])
        if difference.old != difference.new:
            raise ConfigError(_refusal(settings, found.source, difference))


def _refusal(settings: Settings, source: RunDirectory, difference: Difference) -> str:
    setting, old, new = difference.setting, as_configured(difference.old), as_configured(difference.new)
    return (
        f"resume={settings.resume}: {source} was trained with {setting}={old}, but this run has {setting}={new}, and "
        f"{difference.why_fixed}; a run that resumes takes no settings from there: give "
        f"{setting}={old} again, or leave out resume"
    )


def check_start(
    settings: Settings, run: RunDirectory, found: StartPoint, timetable: Timetable, dataset: Any, chain: LayerChain
) -> StartPoint:
    """Checks the checkpoint against the data set, the model and the length of the run; the start with its step.

    Raises:
        ConfigError: it cannot resume from the checkpoint that `resume` names, or has no steps left.
    """
    folder = found.checkpoint
    if folder is None:
        return found
    check_vocabulary(folder, dataset)
    check_data(folder, timetable.steps_per_epoch)
    check_weights(folder, chain)
    if any(each.setting.startswith("optimizer.") for each in found.differences if each.setting not in _STATELESS):
        check_optimizer(folder, settings.optimizer)
    progress = store.load_progress(folder)
    step, total = progress["step"], timetable.total_steps
    if step > total:
        raise ConfigError(_nothing_to_do(settings, found, step, total))
    done = step == total or target_reached(progress, settings.train.target) is not None
    finished = done and _has_ended(settings, run, found, step)
    notes = [*found.notes, *_what_is_missing(step, done=done, evaluation=evaluation_due(progress, timetable))]
    return replace(found, step=step, finished=finished, notes=notes)


def _what_is_missing(step: int, *, done: bool, evaluation: bool) -> list[str]:
    """A line on what is still to be done at the step of the checkpoint."""
    if done:
        missing = "the evaluation and the summary" if evaluation else "the summary"
        return [f"all {step} steps are done; still missing: {missing}"]
    return [f"the evaluation after step {step}, which was broken off, comes first"] if evaluation else []


def _has_ended(settings: Settings, run: RunDirectory, found: StartPoint, step: int) -> bool:
    """True if a run that has done all its steps has its summary, too.

    Raises:
        ConfigError: it has, and this run is another.
    """
    if not completed(found.source):
        return False
    others = [str(each) for each in found.differences if each.changes_weights]
    if settings.resume == "auto" and found.source.path == run.path.resolve() and not others:
        return True
    had = f"; it was completed with other settings ({', '.join(others)})" if others else ""
    raise ConfigError(_nothing_to_do(settings, found, step, step) + had)


def _nothing_to_do(settings: Settings, found: StartPoint, step: int, last: int) -> str:
    return (
        f"resume={settings.resume}: {found.checkpoint} is at step {step}, and this run ends at step {last}; raise "
        "train.epochs or train.max_steps"
    )
