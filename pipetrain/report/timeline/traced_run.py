"""A drain interval of a traced run, found in its directory and held against its operation lists."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipetrain.config.phases import PhaseSettings
from pipetrain.config.settings import Settings
from pipetrain.errors import ConfigError
from pipetrain.executors.phase import PipelineRules
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.program.playback import Slice
from pipetrain.report.timeline.panels import boxes
from pipetrain.report.timeline.trace_file import Trace, read_trace
from pipetrain.run.builders.pipeline import build_recompute_segments, build_rules
from pipetrain.tracking.run_directory import RunDirectory
from pipetrain.tracking.stored_settings import stored_settings

_CALLED = ("schedule", "method", "phases")


@dataclass(frozen=True)
class TracedInterval:
    """What a run did between two drains.

    Attributes:
        rules: what it followed.
        start: minibatches of the run before it.
        minibatches: how many it has.
        trace: of these minibatches.
        batch_size: samples of a minibatch.
        names: of method and schedule on the command line.
    """

    rules: PipelineRules
    start: int
    minibatches: int
    trace: Trace
    batch_size: int
    names: Mapping[str, str]


def traced_interval(run: Path, minibatch: int | None, *, trust: bool) -> TracedInterval:
    """The drain interval that `minibatch`, counted from the start of the run, is in; None: the first one traced.

    Args:
        run: the run directory.
        minibatch: one of the interval.
        trust: whether to call schedules and methods that are not pipetrain's own.

    Raises:
        ConfigError: `run` has no trace, or not of that minibatch, or one of other operations than its lists; or its
            schedule or method is not pipetrain's own.
    """
    directory = RunDirectory(run)
    settings = stored_settings(directory, _CALLED, trust=trust)
    if not directory.trace.is_file():
        raise ConfigError(f"{run}: has no {directory.trace.name}; only runs with trace=true write one, when they end")
    plan = json.loads(directory.plan.read_text())["stages"]
    workers = _rules(settings, settings.phases[0], plan).replicas.num_workers  # the same in all phases
    trace = read_trace(directory.trace, workers)
    interval = _interval(directory.trace, trace, minibatch)
    phase = settings.phases[interval.phase]
    traced = TracedInterval(
        _rules(settings, phase, plan),
        interval.start,
        interval.minibatches,
        trace.of_minibatches(interval.start, interval.start + interval.minibatches),
        settings.train.batch_size,
        phase.choices,
    )
    _check(directory.trace, traced)
    return traced


def _interval(path: Path, trace: Trace, minibatch: int | None) -> DrainInterval:
    for interval in trace.intervals:
        if minibatch is None or interval.start <= minibatch < interval.start + interval.minibatches:
            return interval
    if not trace.intervals:
        raise ConfigError(f"{path}: holds no complete minibatch; the run ended before its first drain")
    first, last = trace.intervals[0], trace.intervals[-1]
    end = last.start + last.minibatches - 1
    raise ConfigError(f"--from {minibatch}: {path} is of minibatches {first.start} to {end}")


def _rules(settings: Settings, phase: PhaseSettings, plan: Sequence[Mapping[str, Any]]) -> PipelineRules:
    stage_of = {stage["first"]: r for r, stage in enumerate(plan) if stage["first"] < stage["last"]}
    segments = build_recompute_segments(settings.train, len(plan), stage_of)
    return build_rules(phase, len(plan), settings.train.microbatches, segments, settings.replicas)


def _check(path: Path, traced: TracedInterval) -> None:
    for r, row in enumerate(traced.trace.rows):
        planned = traced.rules.planned(r, traced.minibatches, traced.start)
        untimed = [Slice(each.operation, 0.0, 0.0) for each in planned]
        expected = [box.name for box in boxes(untimed, planned, traced.start)]
        name = traced.rules.replicas.name(r)
        for here, there in itertools.zip_longest(expected, [box.name for box in row]):
            if here != there:
                raise ConfigError(
                    f"{path}: {name} has {there or 'nothing'} where the schedule and method in config.yaml "
                    f"say {here or 'nothing'}; the trace is of another run, or of one that did not end"
                )
