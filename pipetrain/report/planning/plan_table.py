"""The output of `pipetrain plan`: the best plan next to data parallelism and a straight pipeline, and its stages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipetrain.planner.costs.cut_profile import CutProfile
from pipetrain.planner.costs.topology import Topology
from pipetrain.planner.pipeline_plan import PipelinePlan
from pipetrain.planner.profile.profile import Profile
from pipetrain.report.text_table import both_ends, rate_of, shortened, size_of, text_table

_WIDTH = 28


@dataclass(frozen=True)
class ComparedPlan:
    """A row of the comparison.

    Attributes:
        name: best, straight or data parallel.
        plan: the pipeline.
        fits: True if the devices' memory is enough.
    """

    name: str
    plan: PipelinePlan
    fits: bool


@dataclass(frozen=True)
class Comparison:
    """Plans for one profile, the best one last.

    Attributes:
        profile: what they are plans for.
        topology: the devices.
        rows: the plans.
        batch_size: samples of a minibatch.
        notes: what to know of their times.
    """

    profile: Profile
    topology: Topology
    rows: Sequence[ComparedPlan]
    batch_size: int
    notes: Sequence[str] = ()

    @property
    def best(self) -> PipelinePlan:
        """The plan that was asked for."""
        return self.rows[-1].plan

    def lines(self) -> Iterator[str]:
        """Lines of the table as printed."""
        yield self._subject()
        yield from self.notes
        yield ""
        heads = ("plan", "replicas", "time per minibatch", "speedup", "samples/s", "sent per sample", "memory")
        yield from text_table(heads, map(self._row, self.rows), "<<>>>>>")
        yield ""
        yield from self._stages()
        yield f"minibatches in flight: {self.best.in_flight}"

    def samples_per_s(self, plan: PipelinePlan) -> float:
        """Predicted throughput, in samples per second."""
        return self.batch_size / plan.time_per_minibatch_s

    def sent_per_sample(self, plan: PipelinePlan) -> float:
        """Bytes that all devices together send for each sample."""
        stages, replicas = tuple(s.layers for s in plan.stages), tuple(s.replicas for s in plan.stages)
        return CutProfile(self.profile, stages, replicas, self.topology).total_sent_bytes / self.batch_size

    def _subject(self) -> str:
        weights = size_of(self.profile.weight_bytes)
        levels = zip(self.topology.workers, self.topology.bytes_per_s, strict=True)
        devices = " x ".join(f"{members} at {bandwidth / 1e9:.4g} GB/s" for members, bandwidth in levels)
        cores = self.topology.cores
        sharing = "" if cores is None else f", sharing {cores} core{'s' if cores > 1 else ''}"
        time = seconds(self.best.single_device_time_s)
        return (
            f"{len(self.profile.layers)} layers, {weights} of weights, {time} for a minibatch of {self.batch_size} on "
            f"one device; devices: {devices}{sharing}"
        )

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
        rows = [
            [
                str(r),
                ranges(stage.layers),
                " to ".join(shortened(label, _WIDTH) for label in self._ends(stage.layers)),
                str(stage.replicas),
                seconds(stage.time_s),
                size_of(stage.memory_bytes),
            ]
            for r, stage in enumerate(self.best.stages)
        ]
        heads = ("stage", "layers", "", "replicas", "time per minibatch", "memory")
        return text_table(heads, both_ends(rows, "stages, in plan.json"), "><<>>>")

    def _ends(self, layers: Sequence[int]) -> list[str]:
        ends = (layers[0], layers[-1]) if len(layers) > 1 else layers
        return [self.profile.layers[layer].label for layer in ends]


def shape(plan: PipelinePlan) -> str:
    """The replicas of each stage; `straight` where none has several and they are many."""
    if len(plan.stages) > 1 and plan.num_devices == len(plan.stages) and len(plan.replicas) > _WIDTH:
        return f"straight, {len(plan.stages)} stages"
    return shortened(plan.replicas, _WIDTH)


def seconds(time: float) -> str:
    """A number of seconds as text, in a suitable unit."""
    return f"{time:.4g} s" if time >= 1 else f"{time * 1e3:.4g} ms" if time >= 1e-3 else f"{time * 1e6:.4g} us"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, those that follow each other as one range; of many, how many ranges more there are."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in found[:3]]
    return ",".join(shown) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
