"""Where a run starts: at its first step, at the step of a checkpoint, or at its end, where nothing is left to do."""

from dataclasses import dataclass, field
from pathlib import Path

from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.run.checkpoint import store
from pipetrain.run.checkpoint.compatibility import check_data, check_optimizer, check_vocabulary, check_weights
from pipetrain.run.components import Components
from pipetrain.run.resume import ResumePoint, completed
from pipetrain.run.trainer import evaluation_due, target_reached
from pipetrain.tracking.run_directory import RunDirectory

_STATELESS = ("optimizer.lr", "optimizer.clip_norm")


@dataclass(frozen=True)
class StartPoint:
    """Where a run starts.

    Attributes:
        step: steps that are done.
        checkpoint: what they came to; None for a fresh run.
        finished: whether the run has its summary too.
        notes: what the user should know.
    """

    step: int = 0
    checkpoint: Path | None = None
    finished: bool = False
    notes: list[str] = field(default_factory=list)


def start_point(settings: Settings, run: RunDirectory, found: ResumePoint, components: Components) -> StartPoint:
    """Where this run starts, with its data set, model and length, going on from what was found.

    Raises:
        ConfigError: it cannot go on from the checkpoint that `resume` names, or has none of its steps to go.
    """
    folder, timetable = found.checkpoint, components.timetable
    if folder is None:
        return StartPoint(notes=found.notes)
    check_vocabulary(folder, components.data.dataset)
    check_data(folder, timetable.steps_per_epoch)
    check_weights(folder, components.chain)
    if any(each.setting.startswith("optimizer.") for each in found.differences if each.setting not in _STATELESS):
        check_optimizer(folder, settings.optimizer)
    progress = store.load_progress(folder)
    step, total = progress["step"], timetable.total_steps
    if step > total:
        raise ConfigError(_nothing_to_do(settings, found, step, total))
    done = step == total or target_reached(progress, settings.train.target) is not None
    finished = done and _has_ended(settings, run, found, step)
    notes = [*found.notes, *_what_is_missing(step, done=done, evaluation=evaluation_due(progress, timetable))]
    return StartPoint(step, folder, finished, notes)


def _what_is_missing(step: int, *, done: bool, evaluation: bool) -> list[str]:
    """A line on what is still to be done at the step of the checkpoint."""
    if done:
        missing = "the evaluation and the summary" if evaluation else "the summary"
        return [f"all {step} steps are done; still missing: {missing}"]
    return [f"the evaluation after step {step}, which was broken off, comes first"] if evaluation else []


def _has_ended(settings: Settings, run: RunDirectory, found: ResumePoint, step: int) -> bool:
    """Whether a run that has done all its steps has its summary too.

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


def _nothing_to_do(settings: Settings, found: ResumePoint, step: int, last: int) -> str:
    return (
        f"resume={settings.resume}: {found.checkpoint} is at step {step}, and this run ends at step {last}; raise "
        "train.epochs or train.max_steps"
    )
