"""Samples per second of the runtime, beside torch's own pipelines and the machine's limit, all in one run.

`make bench`, or `python benchmarks/runtime.py --model alexnet`. Synthetic pictures, two stages of one thread each, cut
by `partition=even`, and once more by `partition=auto` where that cuts elsewhere. A round measures a few steps of every
row in turn; rounds are repeated, every other one backwards, so that a busy machine slows all rows alike. Each row is
the mean over a round's steps behind the warm-up, as long and short steps of a pipeline take turns, and the median over
the rounds; each ratio is of two rows of one round, and the median over the rounds.

    sequential       the whole model in one process, the other idle
    limit            the two stages as two processes that never talk: stored inputs, stored gradients
    naive_async, pipedream, pipeoptim, pipemare, gpipe_nN, 1f1b_flush_nN      pipetrain, with its stages' idle shares
    NAME_auto        the same under `partition=auto`
    limit_K          the limit of rows that are cut before layer K, elsewhere than `pipedream`
    torch_gpipe_nN, torch_1f1b_nN                      torch.distributed.pipelining, same stages and optimizer

Every round builds its rows anew, and checks that they train alike (`rows.Rows.check`): saturated, denormal or NaN
numbers take other times. All take SGD with momentum in torch's fused form. torch's rows have processes of their own, as
torch leaves a process; those of pipetrain keep freed memory, as a run's do (`training.builders.machine`). With
`--alike` torch's keep it too, and what still differs is the pipeline alone.
"""

import argparse
import contextlib
import os
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from cuts import auto_bounds, even_bounds, measured_profile, sgd
from rows import Measured, Rows, machine, show, summary, write
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from typing_extensions import override
from workloads import WORKLOADS, Workload

from pipetrain.data.loader import Loader
from pipetrain.device_queue import synchronize
from pipetrain.executors.hooks import OnStep, RunHooks
from pipetrain.executors.messages.transport import NEVER, agreed_transport, set_environment
from pipetrain.executors.pipeline import Bounds, build_pipeline, build_stages, connect_stages
from pipetrain.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.losses import CrossEntropy, StepLoss
from pipetrain.methods.base import Method
from pipetrain.methods.naive_async import NaiveAsync
from pipetrain.methods.pipedream import PipeDream
from pipetrain.methods.pipemare import PipeMare
from pipetrain.methods.pipeoptim import PipeOptim
from pipetrain.methods.synchronous import Synchronous
from pipetrain.program.drain_interval import DrainInterval
from pipetrain.program.playback import play
from pipetrain.program.times import TimeSpan
from pipetrain.schedules.base import Schedule
from pipetrain.schedules.gpipe import GPipe
from pipetrain.schedules.one_f_one_b import OneFOneB, OneFOneBFlush
from pipetrain.schedules.operation import Kind, Operation
from pipetrain.schedules.pipelined_backprop import PipeMareSchedule
from pipetrain.schedules.sequential import Sequential
from pipetrain.stage.base import Training
from pipetrain.stage.measurements import Clock
from pipetrain.stage.stage import Stage
from pipetrain.training.builders.machine import device_at, keep_freed_memory

STAGES, WARM_UP = 2, 3
MICROBATCHES = (2, 4, 8)
_CPU = torch.device("cpu")

OURS: dict[str, tuple[Schedule, Method, int]] = {
    **{f"gpipe_n{n}": (GPipe(), Synchronous(), n) for n in MICROBATCHES},
    **{f"1f1b_flush_n{n}": (OneFOneBFlush(), Synchronous(), n) for n in MICROBATCHES},
    "naive_async": (OneFOneB(), NaiveAsync(), 1),
    "pipedream": (OneFOneB(), PipeDream(), 1),
    "pipeoptim": (OneFOneB(), PipeOptim(), 1),
    "pipemare": (PipeMareSchedule(), PipeMare(), 1),
}
TORCH = {
    **{f"torch_gpipe_n{n}": (ScheduleGPipe, n) for n in MICROBATCHES},
    **{f"torch_1f1b_n{n}": (Schedule1F1B, n) for n in MICROBATCHES},
}

_ASYNCHRONOUS = ("naive_async", "pipedream", "pipeoptim", "pipemare")
_COMPARED = ("gpipe", "torch_gpipe", "1f1b_flush", "torch_1f1b")
_PAIRS = (
    ("pipedream", "naive_async"),
    ("pipeoptim", "pipedream"),
    ("pipemare", "pipedream"),
    *((f"gpipe_n{n}", f"torch_gpipe_n{n}") for n in MICROBATCHES),
    *((f"1f1b_flush_n{n}", f"torch_1f1b_n{n}") for n in MICROBATCHES),
    ("pipedream", "sequential"),
    ("limit", "sequential"),
)


@dataclass(frozen=True)
class Row:
    """What is measured.

    Attributes:
        kind: sequential, limit, or a key of OURS or TORCH.
        bounds: the stages.
    """

    name: str
    kind: str
    bounds: Bounds

    @property
    def cut(self) -> int:
        """The first layer of the second stage."""
        return self.bounds[-1][0]


def rows_of(workload: Workload, device: str) -> list[Row]:
    """In the order of measuring: what is compared runs one after the other."""
    profile, asynchronous = measured_profile(workload, device), list[Row]()
    for name in _ASYNCHRONOUS:
        even, auto = even_bounds(workload, rules_of(name)), auto_bounds(profile, name, STAGES)
        asynchronous += [Row(name, name, even), *([Row(f"{name}_auto", name, auto)] if auto != even else [])]
    own = next(row for row in asynchronous if row.name == "pipedream")
    cuts = {row.cut: row.bounds for row in (own, *asynchronous)}
    limits = [Row("limit" if cut == own.cut else f"limit_{cut}", "limit", bounds) for cut, bounds in cuts.items()]
    synchronous = [
        Row(name, name, even_bounds(workload, rules_of(f"gpipe_n{n}")))
        for n in workload.microbatches
        for name in (f"{kind}_n{n}" for kind in _COMPARED)
    ]
    return [Row("sequential", "sequential", own.bounds), *limits, *asynchronous, *synchronous]


def rules_of(name: str) -> PipelineRules:
    schedule, method, num_microbatches = OURS[name]
    return PipelineRules(schedule, method, STAGES, num_microbatches)


def training(workload: Workload, device: torch.device = _CPU) -> Training:
    return Training(sgd, lambda _: workload.lr, CrossEntropy(), device=device)


def stamps() -> tuple[list[float], list[float], OnStep]:
    """Times and losses of the steps, and what records them; reading the loss waits for the device, as a run does."""
    times, losses = list[float](), list[float]()

    def on_step(_minibatch: int, loss: StepLoss) -> None:
        losses.append(loss.mean.item())
        times.append(time.perf_counter())

    return times, losses, on_step


class Round(NamedTuple):
    """A round of a row, as one process saw it.

    Attributes:
        seconds: of a step behind the warm-up, the mean, on the ranks that know it.
        loss: of the same steps, the mean.
        idle: the share of those steps in which its stage did not compute, where it is known.
        computing: seconds of each operation of its list, where they are known.
    """

    seconds: float | None = None
    loss: float | None = None
    idle: float | None = None
    computing: Sequence[float] = ()

    @classmethod
    def of(cls, times: Sequence[float], losses: Sequence[float]) -> Self:
        """Of the times at which steps ended, and their losses."""
        return cls(seconds_of_step(times), statistics.fmean(losses[WARM_UP:]) if losses else None)


class KeptClock(Clock):
    """A clock whose spans can be read once more when the executor has taken them."""

    @override
    def take(self) -> list[TimeSpan]:
        self.taken = super().take()
        return self.taken


class Bench:
    """One process of the two that measure a row together; each round builds the row anew.

    A row that is kept also keeps its process groups, and each of Gloo's wakes a core a hundred times a second.

    Args:
        workload: the model and its data.
        rank: the stage.
        device: where it computes.
        steps: of a row in a round.
    """

    def __init__(self, workload: Workload, rank: int, device: torch.device, steps: int) -> None:
        self.workload = workload
        self.rank = rank
        self.device = device
        self.steps = steps
        self.transport = agreed_transport(device)
        self.data = workload.pictures(steps)

    def measure(self, row: Row) -> Round:
        """A round of the row."""
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
        """What trains for a round."""
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
        """Each stage alone on stored tensors, both at once; the slower one would bind a pipeline."""
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
        """The activations and the gradients between the stages for the first minibatch, by the initial weights."""
        first, last = (self.stage(r, bounds).module for r in range(STAGES))
        images, labels = self.minibatch(0)
        activations = tuple(each.detach().requires_grad_() for each in first(images, microbatch=(0, 0)))
        loss = nn.functional.cross_entropy(last(*activations, microbatch=(0, 0))[0], labels)
        return activations, torch.autograd.grad(loss, activations)

    def minibatch(self, step: int) -> tuple[Tensor, ...]:
        part = slice(step * self.workload.batch, (step + 1) * self.workload.batch)
        return tuple(tensor[part].to(self.device) for tensor in self.data.tensors)

    def steps_of(self, step: Callable[[int], float | None], module: nn.Module) -> Callable[[], Round]:
        """A row whose steps are `step`, which leaves the gradient of one and returns its loss, and an update."""
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
        times, losses, on_step = stamps()
        stage = self.stage(self.rank, bounds)
        stage.clock = clock = KeptClock(self.device)
        executor = connect_stages(
            [stage], self.phases(rules), RunHooks(on_step), clip_norm=None, transport=self.transport
        )
        operations = rules.lists(self.steps)[self.rank]

        def train() -> Round:
            executor.train(self.loader(rules.num_microbatches), DrainInterval.whole(self.steps))
            spans = clock.taken
            return Round.of(times, losses)._replace(
                idle=idle_share(operations, spans), computing=[span.seconds for span in spans]
            )

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
    """Those of this process, in the order in which it made them."""
    return list(dist.distributed_c10d._world.pg_map)


class Plain(nn.Module):
    """A stage without the key of its random numbers, which torch's pipelines do not pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    @override
    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.module(*tensors, microbatch=(0, 0))
        return outputs[0] if len(outputs) == 1 else outputs


def seconds_of_step(ends: Sequence[float]) -> float | None:
    """Seconds of a step behind the warm-up, the mean, given when all ended; None without any."""
    return (ends[-1] - ends[WARM_UP - 1]) / (len(ends) - WARM_UP) if ends else None


def overhead(kind: str, steps: int, rounds: Sequence[Round]) -> float | None:
    """The share of the time that operations of these lengths would not have taken: that of messages and of Python.

    The rest of what a pipeline is slower than its limit comes from its operations: those of one stage wait for those of
    the other, and no two steps take equally long.
    """
    if not all(each.computing for each in rounds):
        return None
    lists = rules_of(kind).lists(steps)
    seconds = [dict(zip(ops, each.computing, strict=True)) for ops, each in zip(lists, rounds, strict=True)]
    last = play(lists, lambda worker, operation: seconds[worker][operation])[-1]
    ideal = seconds_of_step([each.end for each in last if each.operation.kind is Kind.UPDATE])
    measured = rounds[-1].seconds
    return None if ideal is None or measured is None else 1 - ideal / measured


def idle_share(operations: Sequence[Operation], spans: Sequence[TimeSpan]) -> float:
    """The share of time in which a stage did not compute, from the update that ends the warm-up to the last but one.

    Neither the fill of the pipeline nor the drain behind a round of few steps counts.
    """
    updates = [span for operation, span in zip(operations, spans, strict=True) if operation.kind is Kind.UPDATE]
    begin, end = (updates[step].start + updates[step].seconds for step in (WARM_UP - 1, -2))
    return 1 - sum(span.seconds for span in spans if begin <= span.start < end) / (end - begin)


class Processes:
    """The processes of all stages; they wait, idle, between the rows that they are asked for."""

    def __init__(self, model: str, device: str, steps: int, *, keep_memory: bool) -> None:
        self._batch, self._steps = WORKLOADS[model].batch, steps
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        context = mp.get_context("spawn")
        self._pipes: list[Connection] = []
        for rank in range(STAGES):
            here, there = context.Pipe()
            options = {"model": model, "kind": device, "steps": steps, "keep_memory": keep_memory}
            context.Process(target=process, args=(there, rank, port), kwargs=options, daemon=True).start()
            there.close()
            self._pipes.append(here)

    def measure(self, row: Row) -> Measured:
        """One round of the row.

        Raises:
            EOFError: a process ended.
        """
        for pipe in self._pipes:
            pipe.send(row)
        rounds: list[Round] = [pipe.recv() for pipe in self._pipes]
        # every process times its own steps; the slowest is the pipeline's
        slowest = max(each.seconds for each in rounds if each.seconds is not None)
        (loss,) = (each.loss for each in rounds if each.loss is not None)
        idle = [each.idle for each in rounds if each.idle is not None]
        return Measured(self._batch / slowest, loss, idle, overhead(row.kind, self._steps, rounds))


def process(  # noqa: PLR0913  (sent to a new process by name)
    pipe: Connection, rank: int, port: int, *, model: str, kind: str, steps: int, keep_memory: bool
) -> None:
    torch.set_num_threads(1)
    set_environment(kind)
    if keep_memory:
        keep_freed_memory()
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    device = device_at(kind, rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo", rank=rank, world_size=STAGES, timeout=NEVER)
    bench = Bench(WORKLOADS[model], rank, device, steps)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(bench.measure(pipe.recv()))


def measure(measured: list[Row], options: argparse.Namespace) -> Rows:
    """All rounds, behind one that warms up."""
    repeats: int = options.repeats or WORKLOADS[options.model].rounds
    choices = options.model, options.device, options.steps
    ours = Processes(*choices, keep_memory=True)
    torchs = Processes(*choices, keep_memory=options.alike)
    rows = Rows()
    for repeat in range(repeats + 1):
        for row in measured[:: 1 if repeat % 2 else -1]:
            found = (torchs if row.kind in TORCH else ours).measure(row)
            if repeat:
                rows.add(row.name, found)
                print(f"round {repeat}/{repeats}  {row.name:16} {found}", flush=True)
        if repeat:
            rows.check("sequential")
    return rows


def report(measured: list[Row], rows: Rows, options: argparse.Namespace) -> dict[str, Any]:
    limits = {row.cut: row.name for row in measured if row.kind == "limit"}
    asynchronous = [row for row in measured if row.kind in _ASYNCHRONOUS]
    result = summary(
        f"{WORKLOADS[options.model].in_words}, {STAGES} stages, one thread each, SGD with momentum, fused",
        rows,
        (*((f"{row.kind}_auto", row.kind) for row in asynchronous if row.name == row.kind), *_PAIRS),
        steps=options.steps - WARM_UP,
        torch_keeps_freed_memory=options.alike,
        machine=machine(options.device),
        cuts={row.name: row.cut for row in measured if row.kind != "sequential"},
    )
    of_limits = {
        f"{row.name} / limit": round(rows.ratio(row.name, limits[row.cut]), 3)
        for row in asynchronous
        if row.cut in limits
    }
    torchs = [row.name for row in measured if row.kind in TORCH]
    best = {f"{row.name} / best of torch": round(rows.ratio(row.name, *torchs), 3) for row in asynchronous if torchs}
    result["ratios"] = {**best, **of_limits, **result["ratios"]}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=WORKLOADS, default="resnet56")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=8, help=f"of each row in a round, the first {WARM_UP} to warm up")
    parser.add_argument("--repeats", type=int, help="rounds, behind one that warms up; default 10, of vgg16_bn 5")
    parser.add_argument("--alike", action="store_true", help="torch's processes keep freed memory, as pipetrain's do")
    parser.add_argument("--only", nargs="*", default=[], help="kinds of rows to measure; nothing is written then")
    options = parser.parse_args()
    rows = rows_of(WORKLOADS[options.model], options.device)
    if options.device == "cuda" and torch.cuda.device_count() < STAGES:
        print("without torch's rows: its pipelines need a device for each process")
        rows = [row for row in rows if row.kind not in TORCH]
    measured = [row for row in rows if not options.only or row.kind in ("sequential", *options.only)]
    result = report(measured, measure(measured, options), options)
    show(result)
    if not options.only:
        model = "" if options.model == "resnet56" else f"_{options.model}"
        write(result, f"runtime{model}{'_cuda' * (options.device == 'cuda')}{'_alike' * options.alike}")


if __name__ == "__main__":
    main()
