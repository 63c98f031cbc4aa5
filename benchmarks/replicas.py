"""Speed with replicas of stages, compared with the same work without replicas and with DistributedDataParallel.

Run `make bench`, or `python benchmarks/replicas.py --model alexnet`. Workloads, cuts and rounds are those of
`runtime.py`: every second round takes the rows in reverse order. The time of a minibatch is the mean over those of a
round in which the pipeline neither fills nor drains. The result of a row is the median over the rounds. A ratio is
between two rows of one round, and its result is the median over the rounds as well.

    ddp             torch's DistributedDataParallel in two processes, each with the whole model
    data_parallel   pipetrain on the same minibatches, with one stage in two replicas
    train_alone     likewise, but they average a twentieth of their weights after each update, which comes two later
    pipedream       two stages
    pipedream_rr    the same two stages, the first in two replicas, in three processes

Every process has one thread. With fewer cores than processes, `pipedream_rr` shows what replicas cost, not what they
gain.
"""

import argparse
import contextlib
import gc
import os
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from cuts import even_bounds, sgd
from rounds import Plain, process_groups, slowest, stamps, training
from rows import Measured, Rows, machine, show, summary, write
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from workloads import WORKLOADS, Workload

from pipetrain.data.loader import Loader
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.executors.messages.transport import NEVER
from pipetrain.engine.executors.pipeline import build_stages, connect_stages
from pipetrain.engine.executors.pipeline_rules import Phase, PipelineRules
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.schedules import Replicas
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.round_robin import RoundRobin
from pipetrain.engine.schedules.sequential import DataParallel
from pipetrain.engine.stage.stage import Stage
from pipetrain.runner.training.components.machine import keep_freed_memory
from pipetrain.zoo.weight_averaging import WeightAveraging

WARM_UP, COOL_DOWN = 4, 4
"""Number of minibatches at the start and at the end of a round that are not counted."""
DDP_PROCESSES = 2
OURS = {
    "data_parallel": PipelineRules(RoundRobin(DataParallel(), Replicas((2,))), Synchronous(), 1, 1),
    "train_alone": PipelineRules(RoundRobin(DataParallel(), Replicas((2,), delay=2)), Synchronous(), 1, 1),
    "pipedream": PipelineRules(OneFOneB(), PipeDream(), 2, 1),
    "pipedream_rr": PipelineRules(RoundRobin(OneFOneB(), Replicas((2, 1))), PipeDream(), 2, 1),
}
ROWS = ("ddp", *OURS)
RATIOS = (("data_parallel", "ddp"), ("train_alone", "data_parallel"), ("pipedream_rr", "pipedream"))
AVERAGING = WeightAveraging(delay=2)

Row = Callable[[], tuple[float | None, list[float]]]
"""Trains for a round, and returns the mean seconds of a minibatch, None if unknown, and the losses of minibatches."""


def whole(workload: Workload) -> Stage:
    """The whole model as one stage."""
    chain = workload.chain()
    return build_stages(chain, [(0, len(chain))], training(workload))[0]


def minibatch_seconds(times: list[float], together: int) -> float | None:
    """Mean seconds of a counted minibatch, from the times at which minibatches ended, `together` at once."""
    if not times:
        return None
    ends = times[together - 1 :: together]
    first, last = WARM_UP // together - 1, len(ends) - 1 - COOL_DOWN // together
    return (ends[last] - ends[first]) / ((last - first) * together)


def ddp(workload: Workload, rank: int, steps: int) -> Row:
    images, labels = workload.pictures(steps).tensors
    model = DistributedDataParallel(Plain(whole(workload).module))
    optimizer = sgd(list(model.parameters()), workload.lr)
    mine = [*zip(images.split(workload.batch), labels.split(workload.batch), strict=True)][rank::DDP_PROCESSES]

    def row() -> tuple[float | None, list[float]]:
        times, losses = list[float](), list[float]()
        for x, y in mine:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            times += [time.perf_counter()] * DDP_PROCESSES
        return minibatch_seconds(times, DDP_PROCESSES), losses

    return row


def ours(workload: Workload, rank: int, steps: int, rules: PipelineRules) -> Row:
    stage, replica = rules.replicas.places[rank]
    times, losses, on_step = stamps()
    options = replace(training(workload), averaging=AVERAGING if rules.replicas.train_alone else None)
    stages = build_stages(workload.chain(), even_bounds(workload, rules), options, [stage], replica)
    executor = connect_stages(stages, [Phase(rules, 0, steps)], RunHooks(on_step), clip_norm=None)
    loader = Loader(workload.pictures(steps), batch_size=workload.batch, shuffle=False)

    def row() -> tuple[float | None, list[float]]:
        executor.train(loader, DrainInterval.whole(steps))
        return minibatch_seconds(times, rules.replicas.counts[-1]), losses

    return row


class Processes:
    """The processes of one row, which are idle between rounds."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        context, self._pipes = mp.get_context("spawn"), list[Connection]()
        for rank in range(OURS[name].replicas.num_workers if name in OURS else DDP_PROCESSES):
            here, there = context.Pipe()
            context.Process(target=process, args=(there, rank, port, name, options), daemon=True).start()
            there.close()
            self._pipes.append(here)

    def measure(self) -> tuple[float, float]:
        """Seconds of a minibatch in one round, and its mean loss.

        Raises:
            EOFError: a process ended.
        """
        for pipe in self._pipes:
            pipe.send(None)
        seconds, losses = zip(*(pipe.recv() for pipe in self._pipes), strict=True)
        return slowest(seconds), statistics.fmean(loss for each in losses for loss in each)


def process(pipe: Connection, rank: int, port: int, name: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    world_size = OURS[name].replicas.num_workers if name in OURS else DDP_PROCESSES
    dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=NEVER)
    workload, steps, others = WORKLOADS[options.model], options.steps, process_groups()
    with contextlib.suppress(EOFError):
        while True:
            pipe.recv()
            row = ours(workload, rank, steps, OURS[name]) if name in OURS else ddp(workload, rank, steps)
            dist.barrier()
            pipe.send(row())
            del row
            gc.collect()  # stages refer to themselves
            for group in process_groups()[len(others) :]:
                dist.destroy_process_group(group)


def measure(names: list[str], options: argparse.Namespace) -> Rows:
    """All rounds after one that warms up."""
    processes, batch = {name: Processes(name, options) for name in names}, WORKLOADS[options.model].batch
    rows = Rows()
    for repeat in range(options.repeats + 1):
        for name in names[:: 1 if repeat % 2 else -1]:
            seconds, loss = processes[name].measure()
            if repeat:
                rows.add(name, Measured(batch / seconds, loss))
                print(f"round {repeat}/{options.repeats}  {name:14} {batch / seconds:8.1f} samples/s", flush=True)
        if repeat and "ddp" in names:
            rows.check("ddp")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=WORKLOADS, default="resnet56")
    parser.add_argument(
        "--steps",
        type=int,
        default=16,
        help=f"minibatches of a round, an even number; the first {WARM_UP} and last {COOL_DOWN} are not counted",
    )
    parser.add_argument("--repeats", type=int, default=10, help="rounds after one that warms up")
    parser.add_argument("--only", nargs="*", default=[], choices=ROWS, help="rows to measure; nothing is written then")
    options = parser.parse_args()
    if options.steps % 2 or options.steps <= WARM_UP + COOL_DOWN:
        parser.error(f"--steps={options.steps}: an even number above {WARM_UP + COOL_DOWN} works")
    result = summary(
        f"{WORKLOADS[options.model].in_words}, processes of one thread each, SGD with momentum, fused",
        measure(options.only or [*ROWS], options),
        RATIOS,
        steps=options.steps - WARM_UP - COOL_DOWN,
        machine=machine("cpu"),
    )
    show(result)
    if not options.only:
        write(result, f"replicas{'' if options.model == 'resnet56' else f'_{options.model}'}")


if __name__ == "__main__":
    main()
