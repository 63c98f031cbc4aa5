"""The rows of `runtime.py`: the pipeline that each of them trains in two processes, and the times of its steps."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
import torch.distributed as dist
from cuts import sgd
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from typing_extensions import override
from workloads import Workload

from pipetrain.data.loader import Loader
from pipetrain.engine.device_queue import synchronize
from pipetrain.engine.executors.hooks import OnStep, RunHooks
from pipetrain.engine.executors.messages.transport import agreed_transport
from pipetrain.engine.executors.pipeline import Bounds, build_pipeline, build_stages, connect_stages
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.losses import CrossEntropy, StepLoss
from pipetrain.engine.methods.base import Method
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.methods.pipemare import PipeMare
from pipetrain.engine.methods.pipeoptim import PipeOptim
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.playback import play
from pipetrain.engine.program.times import TimeSpan
from pipetrain.engine.schedules.base import Schedule
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneBFlush
from pipetrain.engine.schedules.one_f_one_b_v import OneFOneBV
from pipetrain.engine.schedules.operation import Kind, Operation
from pipetrain.engine.schedules.pipelined_backprop import PipeMareSchedule
from pipetrain.engine.schedules.sequential import Sequential
from pipetrain.engine.stage.base import Training
from pipetrain.engine.stage.measurements import Clock
from pipetrain.engine.stage.stage import Stage

STAGES, WARM_UP, COOL_DOWN = 2, 3, 3
MICROBATCHES = (2, 4, 8)
_CPU = torch.device("cpu")

OURS: dict[str, tuple[Schedule, Method, int]] = {
    **{f"gpipe_n{n}": (GPipe(), Synchronous(), n) for n in MICROBATCHES},
    **{f"1f1b_flush_n{n}": (OneFOneBFlush(), Synchronous(), n) for n in MICROBATCHES},
    "naive_async": (OneFOneB(), NaiveAsync(), 1),
    "pipedream": (OneFOneB(), PipeDream(), 1),
    "pipedream_v": (OneFOneBV(), PipeDream(), 1),
    "pipedream_v332": (OneFOneBV((3, 3, 2)), PipeDream(), 1),
    "pipeoptim": (OneFOneB(), PipeOptim(), 1),
    "pipemare": (PipeMareSchedule(), PipeMare(), 1),
}
TORCH = {
    **{f"torch_gpipe_n{n}": (ScheduleGPipe, n) for n in MICROBATCHES},
    **{f"torch_1f1b_n{n}": (Schedule1F1B, n) for n in MICROBATCHES},
}


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        kind: sequential, limit, or a key of OURS or TORCH.
        bounds: of the stages.
    """

    name: str
    kind: str
    bounds: Bounds

    @property
    def cut(self) -> int:
        """Index of the first layer of the second stage."""
        return self.bounds[-1][0]


def rules_of(name: str) -> PipelineRules:
    schedule, method, num_microbatches = OURS[name]
    return PipelineRules(schedule, method, STAGES * getattr(schedule, "chunks", 1), num_microbatches)


def training(workload: Workload, device: torch.device = _CPU) -> Training:
    return Training(OptimizerFactory(sgd, lambda _: workload.lr), CrossEntropy(), device=device)


def stamps() -> tuple[list[float], list[float], OnStep]:
    """Lists of the times and losses of steps, and a callback that appends to them.

    It reads the loss, which waits for the device, as in a run.
    """
    times, losses = list[float](), list[float]()

    def on_step(_minibatch: int, loss: StepLoss) -> None:
        losses.append(loss.mean.item())
        times.append(time.perf_counter())

    return times, losses, on_step


class Round(NamedTuple):
    """Measurements of one process in a round of a row. Those that it cannot make are left out.

    Attributes:
        seconds: mean time of a counted step.
        loss: mean loss of these steps.
        idle: share of time in which the stage did not compute.
        computing: seconds of each operation of the stage's list.
    """

    seconds: float | None = None
    loss: float | None = None
    idle: float | None = None
    computing: Sequence[float] = ()

    @classmethod
    def of(cls, times: Sequence[float], losses: Sequence[float]) -> Self:
        """The measurements that follow from the times at which steps ended, and from their losses."""
        return cls(seconds_of_step(times), statistics.fmean(losses[WARM_UP:-COOL_DOWN]) if losses else None)


class KeptClock(Clock):
    """A clock that keeps the spans last taken by the executor in `taken`."""

    @override
    def take(self) -> list[TimeSpan]:
        self.taken = super().take()
        return self.taken


class Bench:
    """One of the two processes that run the rows.

    It rebuilds the row in each round. Keeping rows would keep their process groups, and every group of Gloo
    wakes a core a hundred times per second.

    Args:
        workload: the model and its data.
        rank: index of the stage.
        device: of the stage.
        steps: number of steps in a round.
    """

    def __init__(self, workload: Workload, rank: int, device: torch.device, steps: int) -> None:
        self.workload = workload
        self.rank = rank
        self.device = device
        self.steps = steps
        self.transport = agreed_transport(device)
        self.data = workload.pictures(steps)

    def measure(self, row: Row) -> Round:
        """Measurements of one round of the row."""
        others = process_groups()
        train = self.built(row)
        dist.barrier()
        measured = train()
        del train
        synchronize(self.device)
        for group in process_groups()[len(others) :]:
            dist.destroy_process_group(group)
        return measured

    def built(self, row: Row) -> Callable[[], Round]:
        """A function that trains the row for one round."""
        if row.kind in OURS:
            return self.ours(row.bounds, rules_of(row.kind))
        if row.kind in TORCH:
            return self.torchs(row.bounds, *TORCH[row.kind])
        return self.limit(row.bounds) if row.kind == "limit" else self.sequential()

    def stage(self, r: int, bounds: Bounds) -> Stage:
        return build_stages(self.workload.chain(), bounds, self.training, [r])[0]

    @property
    def training(self) -> Training:
        return training(self.workload, self.device)

    # -- rows --------------------------------------------------------------------------------------------------------

    def sequential(self) -> Callable[[], Round]:
        if self.rank:
            return Round
        times, losses, on_step = stamps()
        chain = self.workload.chain()
        phases = self.phases(PipelineRules(Sequential(), Synchronous(), 1, 1))
        executor = build_pipeline(chain, [(0, len(chain))], phases, self.training, RunHooks(on_step))

        def train() -> Round:
            executor.train(self.loader(1), DrainInterval.whole(self.steps))
            return Round.of(times, losses)

        return train

    def limit(self, bounds: Bounds) -> Callable[[], Round]:
        """Trains both stages at once, each on stored tensors; a pipeline cannot be faster than the slower one."""
        (images, labels), (activations, gradients) = self.minibatch(0), self.messages(bounds)
        module, last = self.stage(self.rank, bounds).module, self.rank == STAGES - 1
        inputs = activations if self.rank else (images,)

        def step(number: int) -> float | None:
            outputs = module(*(each.detach().requires_grad_(self.rank > 0) for each in inputs), microbatch=(number, 0))
            if not last:
                torch.autograd.backward(outputs, gradients)
                return None
            loss = nn.functional.cross_entropy(outputs[0], labels)
            loss.backward()
            return loss.item()

        return self.steps_of(step, module)

    def messages(self, bounds: Bounds) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Activations and gradients that the stages exchange for the first minibatch, at the initial weights."""
        first, last = (self.stage(r, bounds).module for r in range(STAGES))
        images, labels = self.minibatch(0)
        activations = tuple(each.detach().requires_grad_() for each in first(images, microbatch=(0, 0)))
        loss = nn.functional.cross_entropy(last(*activations, microbatch=(0, 0))[0], labels)
        return activations, torch.autograd.grad(loss, activations)

    def minibatch(self, step: int) -> tuple[Tensor, ...]:
        part = slice(step * self.workload.batch, (step + 1) * self.workload.batch)
        return tuple(tensor[part].to(self.device) for tensor in self.data.tensors)

    def steps_of(self, step: Callable[[int], float | None], module: nn.Module) -> Callable[[], Round]:
        """A function that trains for one round: each step is a call of `step` and an update.

        Args:
            step: step number -> its loss if this process has one; adds to the gradients of the module.
            module: the stage.
        """
        optimizer = sgd(list(module.parameters()), self.workload.lr)

        def train() -> Round:
            times, losses = list[float](), list[float]()
            for number in range(self.steps):
                loss = step(number)
                optimizer.step()
                optimizer.zero_grad()
                synchronize(self.device)
                times.append(time.perf_counter())
                losses += [] if loss is None else [loss]
            return Round.of(times, losses)

        return train

    def ours(self, bounds: Bounds, rules: PipelineRules) -> Callable[[], Round]:
        _, losses, on_step = stamps()
        stages = [self.stage(r, bounds) for r in rules.placement.stages_of[self.rank]]
        clocks = [KeptClock(self.device) for _ in stages]
        for stage, clock in zip(stages, clocks, strict=True):
            stage.clock = clock
        executor = connect_stages(
            stages, self.phases(rules), RunHooks(on_step), clip_norm=None, transport=self.transport
        )
        lists = [rules.worker_list(stage.index, self.steps) for stage in stages]

        def train() -> Round:
            executor.train(self.loader(rules.num_microbatches), DrainInterval.whole(self.steps))
            ends = ends_of_updates(lists[0], clocks[0].taken)
            spans = [span for clock in clocks for span in clock.taken]
            computing = [] if rules.placement.several else [span.seconds for span in spans]
            return Round.of(ends, losses)._replace(idle=idle_share(ends, spans), computing=computing)

        return train

    def phases(self, rules: PipelineRules) -> list[Phase]:
        return [Phase(rules, 0, self.steps)]

    def loader(self, num_microbatches: int) -> Loader:
        return Loader(self.data, batch_size=self.workload.batch, microbatches=num_microbatches, shuffle=False)

    def torchs(self, bounds: Bounds, schedule_class: type, num_microbatches: int) -> Callable[[], Round]:
        module = Plain(self.stage(self.rank, bounds).module)
        pipe = PipelineStage(module, self.rank, STAGES, self.device, group=self.transport.new_group())
        schedule = schedule_class(pipe, num_microbatches, loss_fn=nn.functional.cross_entropy)

        def step(number: int) -> float | None:
            images, labels = self.minibatch(number)
            if self.rank == 0:
                schedule.step(images)
                return None
            losses: list[Tensor] = []
            schedule.step(target=labels, losses=losses)
            return torch.stack(losses).mean().item()

        return self.steps_of(step, module)


def process_groups() -> list[dist.ProcessGroup]:
    """Process groups of this process, oldest first."""
    return list(dist.distributed_c10d._world.pg_map)


class Plain(nn.Module):
    """A stage without the argument `microbatch`, which torch's pipelines do not pass.

    It gets the same random numbers in all microbatches.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    @override
    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.module(*tensors, microbatch=(0, 0))
        return outputs[0] if len(outputs) == 1 else outputs


def seconds_of_step(ends: Sequence[float]) -> float | None:
    """Mean time of a counted step, from the times at which all steps ended; None if there are none.

    The first and last steps are left out because the pipeline fills and drains in them: under `pipemare`, the first
    stage runs no forwards between its last four backwards.
    """
    return (ends[-COOL_DOWN - 1] - ends[WARM_UP - 1]) / (len(ends) - WARM_UP - COOL_DOWN) if ends else None


def overhead(kind: str, steps: int, rounds: Sequence[Round]) -> float | None:
    """Share of the time that messages and Python took; None if the lengths of operations are unknown.

    It is measured against an ideal pipeline whose operations take as long as the measured ones and cost nothing else.
    This pipeline is slower than the limit, too, because stages wait for each other and steps are unequally long.
    """
    if not all(each.computing for each in rounds):
        return None
    lists = rules_of(kind).lists(steps)
    seconds = [dict(zip(ops, each.computing, strict=True)) for ops, each in zip(lists, rounds, strict=True)]
    played = play(lists, lambda worker, operation: seconds[worker][operation])
    ideal = slowest(
        seconds_of_step([each.end for each in stage if each.operation.kind is Kind.UPDATE]) for stage in played
    )
    return 1 - ideal / slowest(each.seconds for each in rounds)


def slowest(seconds: Iterable[float | None]) -> float:
    """Time of a step of the pipeline, from those of its stages that are known; the slowest one sets the pace."""
    return max(each for each in seconds if each is not None)


def ends_of_updates(operations: Sequence[Operation], spans: Sequence[TimeSpan]) -> list[float]:
    """Times at which the updates of a stage ended."""
    pairs = zip(operations, spans, strict=True)
    return [span.start + span.seconds for operation, span in pairs if operation.kind is Kind.UPDATE]


def idle_share(ends: Sequence[float], spans: Sequence[TimeSpan]) -> float:
    """Share of time in which the process did not compute, in the counted steps, which ended at these times."""
    begin, end = ends[WARM_UP - 1], ends[-COOL_DOWN - 1]
    return 1 - sum(span.seconds for span in spans if begin <= span.start < end) / (end - begin)
