"""A part of a traced run between two drains, found in its directory and held against its operation lists."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.executors.phase import PipelineRules
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.program.playback import Slice
from pipetrain.report.timeline.panels import boxes
from pipetrain.report.timeline.trace_file import Trace, read_trace
from pipetrain.run.build import build_recompute_segments, build_rules
from pipetrain.run.timetable import Timetable
from pipetrain.tracking import metrics_file
from pipetrain.tracking.run_directory import RunDirectory


@dataclass(frozen=True)
class TracedInterval:
    """What a run did between two drains.

    Attributes:
        rules: what it followed.
        start, minibatches: of the part; `start` since the start of the run.
        trace: of the part.
        batch_size: samples of a minibatch.
        names: of method and schedule on the command line.
    """

    rules: PipelineRules
    start: int
    minibatches: int
    trace: Trace
    batch_size: int
    names: Mapping[str, str]


def traced_part(run: Path, minibatch: int | None) -> TracedInterval:
    """The part between two drains that `minibatch`, counted from the start of the run, is in; None: the first traced.

    Raises:
        ConfigError: `run` has no trace, or not of that minibatch, or it tells of other operations than the lists.
    """
    directory = RunDirectory(run)
    settings = directory.stored_settings()
    if not directory.trace.is_file():
        raise ConfigError(f"{run}: has no {directory.trace.name}; a run with trace=true writes one when it ends")
    plan = json.loads(directory.plan.read_text())["stages"]
    trace = read_trace(directory.trace, len(plan))
    traced = trace.minibatches
    for interval, rules, names in _segments(directory, settings, plan, traced.stop):
        end = interval.start + interval.minibatches
        if interval.start in traced and (minibatch is None or interval.start <= minibatch < end):
            part = trace.of_minibatches(interval.start, end)
            found = TracedInterval(rules, interval.start, interval.minibatches, part, settings.train.batch_size, names)
            _check(directory.trace, found)
            return found
    if not traced:
        raise ConfigError(f"{directory.trace}: holds no update of every stage; the run ended before its first")
    raise ConfigError(f"--from {minibatch}: {directory.trace} is of minibatches {traced.start} to {traced.stop - 1}")


def _segments(
    run: RunDirectory, settings: Settings, plan: Sequence[Mapping[str, Any]], traced: int
) -> Iterator[tuple[DrainInterval, PipelineRules, Mapping[str, str]]]:
    """The run's segments as its trainer had them; the ends of its epochs are in its metrics."""
    ends = [record["step"] for record in metrics_file.read(run) if "per_stage" in record] or [traced]
    total, steps_per_epoch = ends[-1], max(1, ends[0])
    lengths = [phase.length(steps_per_epoch) or total for phase in settings.phases]
    phase_ends = [min(total, end) for end in itertools.accumulate(lengths)]
    timetable = Timetable(total, steps_per_epoch, 0, 0, settings.checkpoint.every_steps, phase_ends)
    stage_of = {stage["first"]: r for r, stage in enumerate(plan) if stage["first"] < stage["last"]}
    spans, microbatches = build_recompute_segments(settings.train, len(plan), stage_of), settings.train.microbatches
    for interval in timetable.segments(0):
        phase = settings.phases[interval.phase]
        yield interval, build_rules(phase, len(plan), microbatches, spans), phase.choices


def _check(path: Path, traced: TracedInterval) -> None:
    for r, row in enumerate(traced.trace.rows):
        planned = traced.rules.planned(r, traced.minibatches, traced.start)
        untimed = [Slice(each.operation, 0.0, 0.0) for each in planned]
        expected = [box.name for box in boxes(untimed, planned, traced.start)]
        for here, there in itertools.zip_longest(expected, [box.name for box in row]):
            if here != there:
                raise ConfigError(
                    f"{path}: stage {r} has {there or 'nothing'} where the schedule and method in config.yaml "
                    f"say {here or 'nothing'}; the trace is of another run, or of one that did not end"
                )
