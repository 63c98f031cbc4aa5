"""The best plan next to data parallelism and a straight pipeline: as a table, and as a figure with its stages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipetrain.planning.costs.cut_profile import CutProfile
from pipetrain.planning.costs.topology import DeviceRow, Topology
from pipetrain.planning.pipeline_plan import PipelinePlan
from pipetrain.planning.profile.profile import Profile
from pipetrain.runner.terminal.style import BLUE, GRAY, GREEN, INK, ORANGE, figure
from pipetrain.runner.terminal.text_table import both_ends, rate_of, shortened, size_of, text_table, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_WIDTH = 28


class ComparedPlan(NamedTuple):
    """A row of the comparison: `name` is best, straight or data parallel; `fits` if the devices' memory is enough."""

    name: str
    plan: PipelinePlan
    fits: bool


@dataclass(frozen=True)
class Comparison:
    """Plans for one profile, the best one last; `batch_size` is the samples of a minibatch, `notes` are printed."""

    profile: Profile
    topology: Topology
    rows: Sequence[ComparedPlan]
    batch_size: int
    notes: Sequence[str] = ()

    @property
    def best(self) -> PipelinePlan:
        """The plan that the settings ask for."""
        return self.rows[-1].plan

    def lines(self) -> Iterator[str]:
        """Lines of the table as printed."""
        weights, time = size_of(self.profile.weight_bytes), seconds(self.best.single_device_time_s)
        levels = zip(self.topology.workers, self.topology.bytes_per_s, strict=True)
        devices = " x ".join(f"{members} at {bandwidth / 1e9:.4g} GB/s" for members, bandwidth in levels)
        cores = self.topology.cores
        sharing = "" if cores is None else f", sharing {cores} core{'s' if cores > 1 else ''}"
        yield (
            f"{len(self.profile.layers)} layers, {weights} of weights, {time} for a minibatch of {self.batch_size} on "
            f"one device; devices: {devices}{sharing}"
        )
        yield from self.notes
        yield ""
        heads = ("plan", "replicas", "time per minibatch", "speedup", "samples/s", "sent per sample", "memory")
        yield from text_table(heads, map(self._row, self.rows), "<<>>>>>")
        yield ""
        yield from self._stages()
        if self.best.placement is None:
            yield f"minibatches in flight: {self.best.in_flight}"

    def samples_per_s(self, plan: PipelinePlan) -> float:
        """Predicted throughput, in samples per second."""
        return self.batch_size / plan.time_per_minibatch_s

    def sent_per_sample(self, plan: PipelinePlan) -> float:
        """Bytes that all devices together send for each sample."""
        stages, replicas = tuple(s.layers for s in plan.stages), tuple(s.replicas for s in plan.stages)
        cut = CutProfile(self.profile, stages, replicas, self.topology, plan.placement)
        return cut.total_sent_bytes / self.batch_size

    def _row(self, row: ComparedPlan) -> list[str]:
        plan = row.plan
        memory = max(stage.memory_bytes for stage in plan.stages)
        return [
            row.name,
            shape(plan),
            seconds(plan.time_per_minibatch_s),
            f"{plan.single_device_time_s / plan.time_per_minibatch_s:.2f}",
            rate_of(self.samples_per_s(plan)),
            size_of(self.sent_per_sample(plan)),
            size_of(memory) + ("" if row.fits else ", too much"),
        ]

    def _stages(self) -> list[str]:
        rows = []
        for r, stage in enumerate(self.best.stages):
            ends = (stage.layers[0], stage.layers[-1]) if len(stage.layers) > 1 else stage.layers
            labels = " to ".join(shortened(self.profile.layers[layer].label, _WIDTH) for layer in ends)
            device = str(stage.replicas if stage.process is None else stage.process)
            costs = (device, seconds(stage.time_s), size_of(stage.memory_bytes))
            rows.append((str(r), ranges(stage.layers), labels, *costs))
        device = "replicas" if self.best.placement is None else "process"
        heads = ("stage", "layers", "", device, "time per minibatch", "memory")
        return text_table(heads, both_ends(rows, "stages, in plan.json"), "><<>>>")


def shape(plan: PipelinePlan) -> str:
    """The replicas of each stage; `straight` if no stage has several and there are many stages."""
    if plan.placement is not None:
        return f"{len(plan.stages)} stages, {plan.num_devices} processes"
    if len(plan.stages) > 1 and plan.num_devices == len(plan.stages) and len(plan.replicas) > _WIDTH:
        return f"straight, {len(plan.stages)} stages"
    return shortened(plan.replicas, _WIDTH)


def seconds(time: float) -> str:
    """A number of seconds as text, in a suitable unit."""
    return f"{time:.4g} s" if time >= 1 else f"{time * 1e3:.4g} ms" if time >= 1e-3 else f"{time * 1e6:.4g} us"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges such as `0-2,5`; of more than three, how many more there are."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in found[:3]]
    return ",".join(shown) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


_COLORS = {"data parallel": GRAY, "straight": ORANGE, "best": BLUE}
_FEW = 12
"""Stages that still have room for numbers."""


def draw_comparison(path: Path, comparison: Comparison) -> None:
    """Draws the figure and writes it to a file."""
    stages = len(comparison.best.stages)
    width = min(9.0, max(3.2, 0.55 * stages + 1.6))
    with figure(path, (4.4, 2.8, *([width, width] if stages > 1 else [])), 3.4) as (plans, sent, *of_stages):
        rows = list(reversed(comparison.rows))
        rates = [f"{rate_of(comparison.samples_per_s(row.plan))} samples/s" for row in rows]
        texts = [rate if row.fits else f"{rate}, too large" for rate, row in zip(rates, rows, strict=True)]
        names = [f"{row.name}\n{shape(row.plan).removeprefix('straight, ')}" for row in rows]
        _bars(plans, rows, [row.plan.time_per_minibatch_s * 1e3 for row in rows], texts, names)
        plans.set(xlabel="time per minibatch (ms)", title="Plans")
        counts = [comparison.sent_per_sample(row.plan) for row in rows]
        unit, size = unit_of(max(counts))
        _bars(sent, rows, [each / size for each in counts], list(map(size_of, counts)))
        sent.set(xlabel=f"sent per sample ({unit})", title="What they send")
        for panel, drawn in zip(of_stages, (_times, _memory), strict=False):
            drawn(panel, comparison)


def _bars(
    panel: "Axes",
    rows: Sequence[ComparedPlan],
    values: Sequence[float],
    texts: Sequence[str],
    names: Sequence[str] = (),
) -> None:
    """A bar for each plan from bottom to top, followed by a text."""
    panel.barh(range(len(values)), values, color=[_COLORS[row.name] for row in rows], height=0.6)
    for place, (value, text) in enumerate(zip(values, texts, strict=True)):
        panel.text(value, place, f" {text}", va="center", color=INK, fontsize=8.5)
    panel.set_xlim(0, 1.7 * max(*values, 1e-9))
    panel.set_yticks(range(len(names)), names)
    panel.grid(visible=False, axis="y")


def _times(panel: "Axes", comparison: Comparison) -> None:
    plan = comparison.best
    values = [stage.time_s * 1e3 for stage in plan.stages]
    panel.bar(range(len(values)), values, color=BLUE, width=0.7)
    bound = plan.time_per_minibatch_s * 1e3
    limit = "slowest stage or link" if comparison.topology.cores is None else "slowest stage, link or cores"
    panel.axhline(bound, color=INK, linewidth=1, linestyle=(0, (4, 2)), label=limit)
    panel.set(ylim=(0, 1.25 * bound), ylabel="time per minibatch (ms)", title="Stages of the best plan")
    panel.legend(loc="upper right")
    _label_stages(panel, comparison)


def _memory(panel: "Axes", comparison: Comparison) -> None:
    best = comparison.best
    row = DeviceRow(comparison.topology, tuple(stage.replicas for stage in best.stages), best.placement)
    limits = row.memory_bytes if inf not in row.memory_bytes else []
    kept = [stage.memory_bytes for stage in comparison.best.stages]
    unit, size = unit_of(max(*kept, *limits, 0.0))
    panel.bar(range(len(kept)), [each / size for each in kept], color=GREEN, width=0.7)
    if limits:
        same = len(set(limits)) == 1
        for r, limit in enumerate(limits):
            label = "_" if r else f"device: {size_of(limit)}" if same else "device"
            ends = (-0.5, len(limits) - 0.5) if same else (r - 0.45, r + 0.45)
            panel.hlines(limit / size, *ends, color=INK, linewidth=1, linestyle=(0, (4, 2)), label=label)
        panel.legend(loc="upper right")
        panel.set_ylim(0, 1.25 * max(*kept, *limits) / size)
    panel.set(ylabel=f"memory of a replica ({unit})", title="What they keep")
    _label_stages(panel, comparison)


def _label_stages(panel: "Axes", comparison: Comparison) -> None:
    stages = comparison.best.stages
    if len(stages) <= _FEW:
        panel.set_xticks(range(len(stages)), [f"{r}\n{stage.replicas}" for r, stage in enumerate(stages)])
        panel.set_xlabel("stage, and its replicas")
    else:
        panel.set_xlabel("stage")
    panel.grid(visible=False, axis="x")
