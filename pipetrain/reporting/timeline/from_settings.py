"""A timeline of settings, played with given times instead of being run."""

import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.program.pipeline_graph import SteadyPipeline
from pipetrain.engine.program.playback import MessageTimes, Orders, grid, idle_shares, play, unit_duration
from pipetrain.engine.program.steady_state import minibatches_held, peak_in_flight, steady_state
from pipetrain.engine.program.times import StageTimes
from pipetrain.engine.schedules import Operation, Placement
from pipetrain.reporting.timeline.composed_phases import ComposedPhase, composed_phases
from pipetrain.reporting.timeline.panels import Panel, boxes, by_process, number
from pipetrain.runner.config.composition import combinations
from pipetrain.runner.terminal.text_table import text_table


@dataclass(frozen=True)
class GivenTimes:
    """The times of the options: for each, one number for all stages or links, or one number each.

    Attributes:
        forward, backward, recomputation: of a microbatch; recomputation None: as the forward.
        weight_gradient: of a microbatch, the part of its backward that a schedule which splits it runs as W; None: half
            of the backward.
        update: of an optimizer step.
        link: latency of a message.
        message_bytes, link_bandwidth: determine the transmission of a message; None: it takes no time.
        seconds: True if the unit is the second.
    """

    forward: Sequence[float] = (1.0,)
    backward: Sequence[float] = (2.0,)
    recomputation: Sequence[float] | None = None
    weight_gradient: Sequence[float] | None = None
    update: Sequence[float] = (0.0,)
    link: Sequence[float] = (0.0,)
    message_bytes: Sequence[float] | None = None
    link_bandwidth: Sequence[float] | None = None
    seconds: bool = False

    def times(self, num_stages: int, num_microbatches: int, *, split: bool = False) -> StageTimes:
        """The times of a number of stages and the links between them.

        Args:
            num_stages: D.
            num_microbatches: N.
            split: True if the schedule splits backwards.

        Raises:
            ConfigError: an option has too few or too many numbers, or one out of range.
        """
        forward = _for_each("--forward-time", self.forward, num_stages, "stages", above=True)
        recomputation = _for_each("--recompute-time", self.recomputation or forward, num_stages, "stages")
        backward = _for_each("--backward-time", self.backward, num_stages, "stages", above=True)
        update = _for_each("--update-time", self.update, num_stages, "stages")
        links = num_stages - 1
        latency = _for_each("--link-time", self.link, links, "links")
        transmission = [0.0] * links
        if self.message_bytes is not None and self.link_bandwidth is not None:
            sizes = _for_each("--message-bytes", self.message_bytes, links, "links")
            speeds = _for_each("--link-bandwidth", self.link_bandwidth, links, "links", above=True)
            transmission = [size / speed for size, speed in zip(sizes, speeds, strict=True)]
        elif self.message_bytes is not None or self.link_bandwidth is not None:
            raise ConfigError(
                "--message-bytes and --link-bandwidth need each other; to give the time itself, use --link-time"
            )
        weight_gradient = self._weight_gradient(backward) if split else []
        backward = [both - w for both, w in zip(backward, weight_gradient, strict=True)] if split else backward
        return StageTimes(
            forward, recomputation, backward, update, num_microbatches, latency, transmission,
            weight_gradient=weight_gradient,
        )  # fmt: skip

    def _weight_gradient(self, backward: Sequence[float]) -> list[float]:
        if self.weight_gradient is None:
            return [seconds / 2 for seconds in backward]
        given = _for_each("--weight-gradient-time", self.weight_gradient, len(backward), "stages", above=True)
        for part, whole in zip(given, backward, strict=True):
            if part >= whole:
                raise ConfigError(f"--weight-gradient-time {part:g}: must be below --backward-time {whole:g}")
        return given


def _for_each(option: str, values: Sequence[float], count: int, of: str, *, above: bool = False) -> list[float]:
    shown = f"{option} {','.join(f'{value:g}' for value in values)}"
    if any(not (value > 0 if above else value >= 0) or value == float("inf") for value in values):
        raise ConfigError(f"{shown}: must be {'above 0' if above else 'at least 0'}, and finite")
    if len(values) not in (1, count):
        raise ConfigError(f"{shown}: {len(values)} numbers for {count} {of}; give one for each, or one for all")
    return list(values) * count if len(values) == 1 else list(values)


_MOST_MINIBATCHES, _MOST_PANELS = 16, 12
"""Minibatches drawn by default; panels drawn at most."""
_IN_TITLE = ("method=", "schedule=", "partition.stages=", "train.microbatches=", "phases=")


def timeline_of_settings(
    overrides: Sequence[str], minibatches: int | None, given: GivenTimes
) -> tuple[list[Panel], list[str]]:
    """A panel for each phase and each member of a sweep, and the lines to print about them.

    Several panels all end with the shortest, so that their speeds can be compared.

    Raises:
        ConfigError: the settings cannot run, or the times do not match the stages.
    """
    every = itertools.chain.from_iterable(map(titled_phases, combinations(overrides)))
    phases = list(itertools.islice(every, _MOST_PANELS + 1))
    if len(phases) > _MOST_PANELS:
        raise ConfigError(
            f"{' '.join(overrides)}: {_MOST_PANELS} timelines at most fit in one figure; choose fewer values or phases"
        )
    filled_twice = max(2, *(_filled(phase.rules) for _, phase in phases))
    count = minibatches or min(_MOST_MINIBATCHES, filled_twice)
    timelines = [phase_timeline(title, phase, min(count, phase.steps or count), given) for title, phase in phases]
    end = min(panel.end for panel, _ in timelines)
    lines = itertools.chain.from_iterable(lines for _, lines in timelines)
    return [replace(panel, end=end) for panel, _ in timelines], list(lines)


def titled_phases(overrides: Sequence[str]) -> Iterator[tuple[str, ComposedPhase]]:
    """The phases that these overrides of `pipetrain run` choose, each with its title."""
    phases = composed_phases(overrides)
    others = [word for word in overrides if not word.startswith((*_IN_TITLE, "hydra."))]
    for index, phase in enumerate(phases):
        chosen = [f"{group}={phase.names[group]}" for group in ("method", "schedule")] + others
        size = [f"D = {phase.rules.num_stages}", f"N = {phase.rules.num_microbatches}"]
        prefix = f"phase {index}: " if len(phases) > 1 else ""
        yield prefix + ", ".join([*chosen, *size]), phase


def _filled(rules: PipelineRules) -> int:
    """As many minibatches as fill the pipeline twice."""
    return 2 * minibatches_held(rules.list_schedule, rules.num_stages, rules.num_microbatches)


def phase_timeline(title: str, phase: ComposedPhase, minibatches: int, given: GivenTimes) -> tuple[Panel, list[str]]:
    """The operation lists of a phase over some minibatches, played with given times: a panel, and lines to print.

    The lines have the grid of operations if the terminal is wide enough.
    """
    rules = phase.rules
    replicas, lists = rules.replicas, rules.lists(minibatches)
    placement = rules.placement if rules.placement.several else None
    times = given.times(rules.num_stages, rules.num_microbatches, split=rules.schedule.splits_backward)
    times = times.within(placement)
    on_workers = replace(times, replicas=replicas)
    messages, orders = MessageTimes(on_workers.transfer, on_workers.occupation), rules.orders(minibatches)
    slices = play(lists, on_workers.duration, rules.segments, messages, replicas, orders)
    cycles = [rules.steady_cycle(r) for r in range(rules.num_stages)]
    averaging_s = [0.0] * rules.num_stages
    steady = steady_state(
        SteadyPipeline(
            cycles, times, replicas.counts, averaging_s, segments=rules.segments, orders=rules.steady_orders()
        )
    )
    per_time = 1.0 / steady.period
    rate = f"{number(per_time)} minibatches in a unit of time"
    if given.seconds:
        rate = f"{number(per_time)} minibatches/s, {number(phase.batch_size * per_time)} samples/s"
    peaks = [peak_in_flight(each, rules.num_microbatches) for each in rules.lists(_filled(rules))]
    idle = [steady.idle[r] for r, _ in replicas.places]
    of_stages = (peaks[replicas.workers_of(r)[0]] for r in range(rules.num_stages))
    by = "stage" if placement is None else "process"
    shown = steady.idle if placement is None else [steady.idle[stages[0]] for stages in placement.stages_of]
    facts = (
        f"steady state: {rate}",
        f"idle share in steady state, by {by}: {', '.join(f'{share:.1%}' for share in shown)}",
        f"most microbatches in flight, by stage: {', '.join(map(str, of_stages))}",
    )
    rows = by_process(boxes(rules, slices, minibatches), placement)
    panel = Panel(
        title, rules.num_microbatches, "s" if given.seconds else "", rows, 0.0, max(row[-1].end for row in rows),
        facts=facts, replicas=replicas, placement=placement, idle_share=sum(idle) / len(idle),
    )  # fmt: skip

    processes = [[str(placement.process_of(r))] if placement is not None else [] for r, _ in replicas.places]
    shares = zip(replicas.labels, processes, peaks, idle, idle_shares(slices, placement), strict=True)
    cells = [(label, *process, str(peak), f"{a:.1%}", f"{b:.1%}") for label, process, peak, a, b in shares]
    several = ("process",) if placement is not None else ()
    last = f"of {minibatches} minibatches with fill and drain"
    heads = ("stage", *several, "in flight", "idle share: steady state", last)
    drawn = grid(lists, replicas=replicas) if placement is None else _grid_of_processes(lists, placement, orders)
    return panel, [title, *text_table(heads, cells, ">" * len(heads)), facts[0], *_fitting(drawn.splitlines()), ""]


def _grid_of_processes(lists: Sequence[Sequence[Operation]], placement: Placement, orders: Orders | None) -> str:
    """The lists as a grid with a row for each process, and the stage before each operation: `2:F0.0`."""
    played = play(lists, unit_duration, orders=orders)
    rows: list[list[str]] = [[] for _ in placement.stages_of]
    for row, stages in zip(rows, placement.stages_of, strict=True):
        pieces = [(piece, r) for r in stages for piece in played[r] if piece.end > piece.start]
        for piece, r in sorted(pieces, key=lambda each: each[0].start):
            row += ["."] * (int(piece.start) - len(row))
            row.append(f"{r}:{piece.operation}")
    names = [placement.name(p) for p in range(len(rows))]
    longest, width = max(map(len, names)), max(len(cell) for row in rows for cell in row)
    return "\n".join(
        f"{name:{longest}}  " + " ".join(cell.center(width) for cell in row).rstrip()
        for name, row in zip(names, rows, strict=True)
    )


def _fitting(drawn: Sequence[str]) -> list[str]:
    """The grid with a head if the terminal is wide enough, or how wide it has to be."""
    width = max(map(len, drawn))
    if width <= shutil.get_terminal_size((120, 24)).columns:
        return ["one column per operation, whatever its duration:", *drawn]
    return [f"a terminal of {width} columns would also show the operations as text"]
