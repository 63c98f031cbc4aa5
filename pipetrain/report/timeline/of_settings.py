"""The timeline of settings: the operation lists of a run that never was, played with given times."""

import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipetrain.errors import ConfigError
from pipetrain.executors.phase import PipelineRules
from pipetrain.program.playback import Slice, idle_shares, play
from pipetrain.program.steady_state import Steady, minibatches_held, peak_in_flight, steady_state
from pipetrain.program.text_grid import grid
from pipetrain.program.times import StageTimes
from pipetrain.report.timeline.given_times import GivenTimes
from pipetrain.report.timeline.panels import Panel, boxes, number
from pipetrain.run.compose import ComposedPhase, combinations, composed_phases

_MOST_MINIBATCHES, _MOST_PANELS = 16, 12
"""Drawn unless asked for; at all."""
_IN_TITLE = ("method=", "schedule=", "partition.stages=", "train.microbatches=", "phases=")


def timeline_of_settings(
    overrides: Sequence[str], minibatches: int | None, given: GivenTimes
) -> tuple[list[Panel], list[str]]:
    """A panel for each phase and each member of a sweep, and what to print of them.

    Several are first shown until the first of them is done, so that their speeds can be seen.

    Raises:
        ConfigError: the settings cannot run, or the times are not as many as the stages.
    """
    found = (part for chosen in combinations(overrides) for part in _titled(chosen))
    parts = list(itertools.islice(found, _MOST_PANELS + 1))
    if len(parts) > _MOST_PANELS:
        raise ConfigError(f"{' '.join(overrides)}: {_MOST_PANELS} timelines at most fit in a picture; these are more")
    count = minibatches or max(_usual(part.rules) for _, part in parts)
    drawn = [_timeline(title, part, min(count, part.steps or count), given) for title, part in parts]
    end = min(panel.end for panel, _ in drawn)
    return [replace(panel, end=end) for panel, _ in drawn], [line for _, lines in drawn for line in lines]


def _titled(overrides: Sequence[str]) -> Iterator[tuple[str, ComposedPhase]]:
    parts = composed_phases(overrides)
    others = [word for word in overrides if not word.startswith(_IN_TITLE)]
    for index, part in enumerate(parts):
        rules = part.rules
        phase = [f"phase {index}"] if len(parts) > 1 else []
        chosen = [f"{group}={part.names[group]}" for group in ("method", "schedule")] + others
        yield ", ".join([*phase, *chosen, f"D = {rules.num_stages}", f"N = {rules.num_microbatches}"]), part


def _usual(rules: PipelineRules) -> int:
    """As many minibatches as fill the pipeline twice."""
    return min(_MOST_MINIBATCHES, max(2, _filled(rules)))


def _filled(rules: PipelineRules) -> int:
    return 2 * minibatches_held(rules.schedule, rules.num_stages, rules.num_microbatches)


def _timeline(title: str, part: ComposedPhase, minibatches: int, given: GivenTimes) -> tuple[Panel, list[str]]:
    rules = part.rules
    times = given.times(rules.num_stages, rules.num_microbatches)
    played = _played(rules, times, minibatches)
    steady = steady_state(
        rules.schedule, rules.num_stages, rules.num_microbatches, lambda count: _played(rules, times, count)
    )
    rows = [list(boxes(row, rules.readings(r, minibatches))) for r, row in enumerate(played)]
    rate = f"steady state: {_rate(steady, part.batch_size, given.seconds)}"
    peaks = [peak_in_flight(operations, rules.num_microbatches) for operations in rules.lists(_filled(rules))]
    facts = (
        rate,
        f"idle share in steady state, by stage: {', '.join(f'{share:.1%}' for share in steady.idle)}",
        f"most microbatches in flight, by stage: {', '.join(map(str, peaks))}",
    )
    end = max(row[-1].end for row in rows)
    unit = "s" if given.seconds else ""
    panel = Panel(title, rules.num_microbatches, unit, rows, 0.0, end, facts=facts)
    table = _table(peaks, steady.idle, idle_shares(played), minibatches)
    return panel, [title, *table, rate, *_grid(rules, minibatches), ""]


def _played(rules: PipelineRules, times: StageTimes, minibatches: int) -> list[list[Slice]]:
    return play(rules.lists(minibatches), times.duration, rules.segments, times.transfer)


def _rate(steady: Steady, batch_size: int, seconds: bool) -> str:
    rate = 1.0 / steady.period
    if not seconds:
        return f"{number(rate)} minibatches in a unit of time"
    return f"{number(rate)} minibatches, {number(batch_size * rate)} samples per second"


def _table(peaks: Sequence[int], steady: Sequence[float], drawn: Sequence[float], minibatches: int) -> Iterator[str]:
    last = f"of {minibatches} minibatches with fill and drain"
    yield f"stage  in flight  idle share: steady state  {last}"
    for r, (peak, share, whole) in enumerate(zip(peaks, steady, drawn, strict=True)):
        yield f"{r:5}  {peak:9}  {share:24.1%}  {whole:{len(last)}.1%}"


def _grid(rules: PipelineRules, minibatches: int) -> list[str]:
    """Nothing where it is too wide for the terminal."""
    drawn = grid(rules.lists(minibatches)).splitlines()
    if max(map(len, drawn)) > shutil.get_terminal_size((120, 24)).columns:
        return []
    return ["in columns of one operation each, whatever it takes:", *drawn]
