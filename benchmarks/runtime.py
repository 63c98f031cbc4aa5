"""Samples per second of the runtime, beside torch's own pipelines and the machine's limit, all in one run.

`make bench`, or `python benchmarks/runtime.py --model alexnet`. Synthetic pictures, two stages of one thread each, cut
by `partition=even`. A round measures a few steps of every row in turn; rounds are repeated, every other one backwards,
so that a busy machine slows all rows alike. Each row is the mean over a round's steps behind the warm-up, as long and
short steps of a pipeline take turns, and the median over the rounds; each ratio is of two rows of one round, and the
median over the rounds.

    sequential       the whole model in one process, the other idle
    limit            the two stages as two processes that never talk: stored inputs, stored gradients
    naive_async, pipedream, pipeoptim, pipemare, gpipe_nN, 1f1b_flush_nN      pipetrain, with its stages' idle shares
    torch_gpipe_nN, torch_1f1b_nN                      torch.distributed.pipelining, same stages and optimizer

All take SGD with momentum in torch's fused form. torch's rows have processes of their own, as torch leaves a process;
those of pipetrain keep freed memory, as a run's do (`run.builders.machine`). With `--alike` torch's keep it too,
and what still differs is the pipeline alone.
"""

import argparse
import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rows import Rows, machine, show, summary, write
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from typing_extensions import override
from workloads import WORKLOADS, Workload

from pipetrain.data.loader import Loader
from pipetrain.device_queue import synchronize
from pipetrain.executors.base import Executor
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
from pipetrain.planner.partition.rules import Even
from pipetrain.planner.run_plan import make_plan
from pipetrain.program.drain_interval import DrainInterval
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
from pipetrain.training.builders.weight_traffic import passes_under

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
    ("pipedream", "limit"),
    ("pipedream", "naive_async"),
    ("pipeoptim", "pipedream"),
    ("pipemare", "pipedream"),
    *((f"gpipe_n{n}", f"torch_gpipe_n{n}") for n in MICROBATCHES),
    *((f"1f1b_flush_n{n}", f"torch_1f1b_n{n}") for n in MICROBATCHES),
    ("pipedream", "sequential"),
    ("limit", "sequential"),
)


def rows_of(workload: Workload) -> list[str]:
    """In the order of measuring: what is compared runs one after the other."""
    synchronous = [f"{name}_n{n}" for n in workload.microbatches for name in _COMPARED]
    return ["sequential", "limit", *_ASYNCHRONOUS, *synchronous]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True)


def training(workload: Workload, device: torch.device = _CPU) -> Training:
    return Training(sgd, lambda _: workload.lr, CrossEntropy(), device=device)


def even_bounds(workload: Workload, rules: PipelineRules) -> Bounds:
    """The stages that `partition=even` makes under these rules."""
    passes = passes_under(rules, sgd([nn.Parameter(torch.zeros(2))]))
    example = workload.pictures(1).tensors[:1]
    plan = make_plan(workload.chain(), Even(rules.num_stages), example, lambda _stages: passes)
    return [(stage.first, stage.last) for stage in plan.stages]


def stamps() -> tuple[list[float], OnStep]:
    """Times of the steps, and what records one; reading the loss waits for the device, as a run does."""
    times: list[float] = []

    def on_step(_minibatch: int, loss: StepLoss) -> None:
        loss.mean.item()
        times.append(time.perf_counter())

    return times, on_step


class Round(NamedTuple):
    """A round of a row, as one process saw it.

    Attributes:
        seconds: of a step behind the warm-up, the mean, on the ranks that know it.
        idle: the share of those steps in which its stage did not compute, where it is known.
    """

    seconds: float | None
    idle: float | None = None


Row = Callable[[], Round]
"""Trains for a round."""


class KeptClock(Clock):
    """A clock whose spans can be read once more when the executor has taken them."""

    @override
    def take(self) -> list[TimeSpan]:
        self.taken = super().take()
        return self.taken


class Bench:
    """One process of the two that measure a row together; a row goes on in each round where it stopped,
    or anew where its weights, or its connections between devices, take too much memory to be kept.

    Args:
        workload: the model and its data.
        rank: the stage.
        device: where it computes.
        steps: of a row in a round.
        rounds: at most.
    """

    def __init__(self, workload: Workload, rank: int, device: torch.device, steps: int, rounds: int) -> None:
        self.workload = workload
        self.rank = rank
        self.device = device
        self.steps = steps
        self.rounds = rounds
        self.transport = agreed_transport(device)
        self.data = workload.pictures(steps)
        self._rows: dict[str, Row] = {}

    def measure(self, name: str) -> Round:
        """A round of the row."""
        others = process_groups()
        row = self._rows.pop(name, None) or self._row(name)
        dist.barrier()
        measured = row()
        if not self.workload.heavy and not self.transport.direct:
            self._rows[name] = row
            return measured
        del row
        synchronize(self.device)
        for group in process_groups()[len(others) :]:
            dist.destroy_process_group(group)
        return measured

    def _row(self, name: str) -> Row:
        if name in OURS:
            schedule, method, num_microbatches = OURS[name]
            return self.ours(PipelineRules(schedule, method, STAGES, num_microbatches))
        if name in TORCH:
            return self.torchs(*TORCH[name])
        return {"sequential": self.sequential, "limit": self.limit}[name]()

    def stage(self, r: int, bounds: Bounds) -> Stage:
        return build_stages(self.workload.chain(), bounds, self.training, [r])[0]

    @property
    def training(self) -> Training:
        return training(self.workload, self.device)

    # -- rows --------------------------------------------------------------------------------------------------------

    def sequential(self) -> Row:
        if self.rank:
            return lambda: Round(None)
        times, on_step = stamps()
        chain = self.workload.chain()
        rules = PipelineRules(Sequential(), Synchronous(), 1, 1)
        executor = build_pipeline(chain, [(0, len(chain))], self.phases(rules), self.training, RunHooks(on_step))
        train = self.rounds_of(executor, Loader(self.data, batch_size=self.workload.batch, shuffle=False))

        def row() -> Round:
            times.clear()
            train()
            return Round(step_seconds(times))

        return row

    def limit(self) -> Row:
        """Each stage alone on stored tensors, both at once; the slower one would bind a pipeline."""
        bounds = even_bounds(self.workload, PipelineRules(OneFOneB(), NaiveAsync(), STAGES, 1))
        stage = self.stage(self.rank, bounds)
        module = stage.module
        optimizer = sgd(list(module.parameters()))
        inputs, gradients = self.stored(stage, bounds)
        targets = torch.randint(0, self.workload.classes, (self.workload.batch,), device=self.device)

        def gradient(step: int) -> None:
            leaves = tuple(tensor.detach().requires_grad_(self.rank > 0) for tensor in inputs)
            outputs = module(*leaves, microbatch=(step, 0))
            if self.rank == STAGES - 1:
                nn.functional.cross_entropy(outputs[0], targets).backward()
            else:
                torch.autograd.backward(outputs, gradients)

        return self.steps_of(gradient, optimizer)

    def steps_of(self, gradient: Callable[[int], None], optimizer: torch.optim.Optimizer) -> Row:
        """A row that leaves the gradient of each step to `gradient`."""

        def row() -> Round:
            times = []
            for step in range(self.steps):
                gradient(step)
                optimizer.step()
                optimizer.zero_grad()
                synchronize(self.device)
                times.append(time.perf_counter())
            return Round(step_seconds(times))

        return row

    def stored(self, stage: Stage, bounds: Bounds) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        tensors: tuple[Tensor, ...] = (self.data.tensors[0][: self.workload.batch].to(self.device),)
        for r in range(self.rank):
            with torch.no_grad():
                tensors = self.stage(r, bounds).module(*tensors, microbatch=(0, 0))
        with torch.no_grad():
            outputs = stage.module(*tensors, microbatch=(0, 0))
        return tensors, tuple(torch.randn_like(output) for output in outputs)

    def ours(self, rules: PipelineRules) -> Row:
        times, on_step = stamps()
        stage = self.stage(self.rank, even_bounds(self.workload, rules))
        stage.clock = clock = KeptClock(self.device)
        executor = connect_stages(
            [stage],
            self.phases(rules),
            RunHooks(on_step),
            clip_norm=None,
            transport=self.transport,
        )
        batch, num_microbatches = self.workload.batch, rules.num_microbatches
        loader = Loader(self.data, batch_size=batch, microbatches=num_microbatches, shuffle=False)
        train, operations = self.rounds_of(executor, loader), rules.lists(self.steps)[self.rank]

        def row() -> Round:
            times.clear()
            train()
            return Round(step_seconds(times), idle_share(operations, clock.taken))

        return row

    def phases(self, rules: PipelineRules) -> list[Phase]:
        return [Phase(rules, 0, self.steps * self.rounds)]

    def rounds_of(self, executor: Executor, loader: Loader) -> Callable[[], object]:
        """What trains for one round after the other."""
        starts = itertools.count(step=self.steps)
        return lambda: executor.train(loader, DrainInterval(epoch=0, first=0, last=self.steps, start=next(starts)))

    def torchs(self, schedule_class: type, num_microbatches: int) -> Row:
        bounds = even_bounds(self.workload, PipelineRules(GPipe(), Synchronous(), STAGES, num_microbatches))
        module = Plain(self.stage(self.rank, bounds).module)
        optimizer = sgd(list(module.parameters()))
        group = self.transport.new_group()
        pipe = PipelineStage(module, self.rank, STAGES, self.device, group=group)
        schedule = schedule_class(pipe, num_microbatches, loss_fn=nn.functional.cross_entropy)
        images, labels = (tensor.to(self.device) for tensor in self.data.tensors)

        def gradient(step: int) -> None:
            part = slice(step * self.workload.batch, (step + 1) * self.workload.batch)
            losses: list[Tensor] = []
            if self.rank == 0:
                schedule.step(images[part])
            else:
                schedule.step(target=labels[part], losses=losses)
                torch.stack(losses).mean().item()

        return self.steps_of(gradient, optimizer)


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


def step_seconds(times: list[float]) -> float | None:
    """Seconds of a step behind the warm-up, the mean; None of a rank that knows no times."""
    return (times[-1] - times[WARM_UP - 1]) / (len(times) - WARM_UP) if times else None


def idle_share(operations: Sequence[Operation], spans: Sequence[TimeSpan]) -> float:
    """The share of time in which a stage did not compute, from the update that ends the warm-up to the last but one.

    Neither the fill of the pipeline nor the drain behind a round of few steps counts.
    """
    updates = [span for operation, span in zip(operations, spans, strict=True) if operation.kind is Kind.UPDATE]
    begin, end = (updates[step].start + updates[step].seconds for step in (WARM_UP - 1, -2))
    return 1 - sum(span.seconds for span in spans if begin <= span.start < end) / (end - begin)


class Processes:
    """The processes of all stages; they wait, idle, between the rows that they are asked for."""

    def __init__(self, model: str, device: str, steps: int, rounds: int, *, keep_memory: bool) -> None:
        self._batch = WORKLOADS[model].batch
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        context = mp.get_context("spawn")
        self._pipes: list[Connection] = []
        for rank in range(STAGES):
            here, there = context.Pipe()
            options = {"model": model, "kind": device, "steps": steps, "rounds": rounds, "keep_memory": keep_memory}
            context.Process(target=process, args=(there, rank, port), kwargs=options, daemon=True).start()
            there.close()
            self._pipes.append(here)

    def measure(self, name: str) -> tuple[float, list[float]]:
        """Samples per second of one round of the row, and the idle shares of the stages where they are known.

        Raises:
            EOFError: a process ended.
        """
        for pipe in self._pipes:
            pipe.send(name)
        rounds: list[Round] = [pipe.recv() for pipe in self._pipes]
        # every process times its own steps; the slowest is the pipeline's
        slowest = max(each.seconds for each in rounds if each.seconds is not None)
        return self._batch / slowest, [each.idle for each in rounds if each.idle is not None]


def process(  # noqa: PLR0913  (sent to a new process by name)
    pipe: Connection, rank: int, port: int, *, model: str, kind: str, steps: int, rounds: int, keep_memory: bool
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
    bench = Bench(WORKLOADS[model], rank, device, steps, rounds)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(bench.measure(pipe.recv()))


def measure(names: list[str], options: argparse.Namespace) -> Rows:
    """All rounds, behind one that warms up."""
    repeats: int = options.repeats or WORKLOADS[options.model].rounds
    choices = options.model, options.device, options.steps, repeats + 1
    ours = Processes(*choices, keep_memory=True)
    torchs = Processes(*choices, keep_memory=options.alike)
    rows = Rows()
    for repeat in range(repeats + 1):
        for name in names[:: -1 if repeat % 2 else 1]:
            speed, idle = (torchs if name in TORCH else ours).measure(name)
            if repeat:
                rows.add(name, speed, idle)
                shares = "".join(f" {share:5.0%}" for share in idle)
                print(f"round {repeat}/{repeats}  {name:16} {speed:8.1f} samples/s  idle{shares or ' -'}", flush=True)
    return rows


def report(rows: Rows, options: argparse.Namespace) -> dict[str, Any]:
    result = summary(
        f"{WORKLOADS[options.model].in_words}, {STAGES} stages, one thread each, SGD with momentum, fused",
        rows,
        _PAIRS,
        steps=options.steps - WARM_UP,
        torch_keeps_freed_memory=options.alike,
        machine=machine(options.device),
    )
    if torchs := [name for name in rows.speeds if name in TORCH]:
        ours = [name for name in _ASYNCHRONOUS if name in rows.speeds]
        best = {f"{name} / best of torch": round(rows.ratio(name, *torchs), 3) for name in ours}
        result["ratios"] = {**best, **result["ratios"]}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=WORKLOADS, default="resnet56")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=8, help=f"of each row in a round, the first {WARM_UP} to warm up")
    parser.add_argument("--repeats", type=int, help="rounds, behind one that warms up; default 10, of vgg16_bn 5")
    parser.add_argument("--alike", action="store_true", help="torch's processes keep freed memory, as pipetrain's do")
    parser.add_argument("--only", nargs="*", default=[], help="rows to measure; nothing is written then")
    options = parser.parse_args()
    rows = rows_of(WORKLOADS[options.model])
    if options.device == "cuda" and torch.cuda.device_count() < STAGES:
        print("without torch's rows: its pipelines need a device for each process")
        rows = [name for name in rows if name not in TORCH]
    names = [name for name in rows if not options.only or name in options.only]
    result = report(measure(names, options), options)
    show(result)
    if not options.only:
        model = "" if options.model == "resnet56" else f"_{options.model}"
        write(result, f"runtime{model}{'_cuda' * (options.device == 'cuda')}{'_alike' * options.alike}")


if __name__ == "__main__":
    main()
