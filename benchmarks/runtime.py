"""Speed of pipetrain in samples per second, compared with torch's pipelines and with the limit of the machine.

Run `make bench`, or `python benchmarks/runtime.py --model alexnet`. The data are synthetic images. There are two stages
of one thread each, cut by `partition=even`, and also by `partition=auto` where that gives another cut. A round measures
a few steps of every row. Every second round takes the rows in reverse order, so that other load on the machine slows
all rows alike. In a round, the time of a step is the mean over all but the first and last ones, because long and short
steps alternate in a pipeline. The result of a row is the median over the rounds. A ratio is between two rows of one
round, and its result is the median over the rounds as well.

    sequential       the whole model in one process; the other process is idle
    limit            the two stages as two processes that do not communicate, with stored inputs and gradients
    naive_async, pipedream, pipeoptim, pipemare, gpipe_nN, 1f1b_flush_nN      pipetrain, with the stages' idle shares
    pipedream_v      `pipedream` with `schedule=1f1b_v`: two stages in each process, which split their backwards
    pipedream_v332   the same with `schedule.times=[3,3,2]`
    NAME_auto        the same with `partition=auto`
    limit_K          the limit for a second stage that begins at layer K, if `pipedream` is cut elsewhere
    torch_gpipe_nN, torch_1f1b_nN                      torch.distributed.pipelining, with the same stages and optimizer

Every round rebuilds its rows and checks that their losses agree (`rows.Rows.check`), because saturated, denormal and
NaN values change the time of operations. All rows use torch's fused SGD with momentum. torch's rows run in processes of
their own, with torch's default handling of memory. Those of pipetrain keep freed memory, as in a run
(`training.components.machine`). With `--alike`, torch's processes keep it, too, so that only the pipelines differ.
"""

import argparse
import contextlib
import os
import socket
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from cuts import auto_bounds, even_bounds, measured_profile
from rounds import COOL_DOWN, MICROBATCHES, STAGES, TORCH, WARM_UP, Bench, Round, Row, overhead, rules_of, slowest
from rows import Measured, Rows, machine, show, summary, write
from workloads import WORKLOADS, Workload

from pipetrain.engine.executors.messages.transport import NEVER, set_environment
from pipetrain.runner.training.components.machine import device_at, keep_freed_memory

_ASYNCHRONOUS = ("naive_async", "pipedream", "pipeoptim", "pipemare")
_V, _V332 = "pipedream_v", "pipedream_v332"
_COMPARED = ("gpipe", "torch_gpipe", "1f1b_flush", "torch_1f1b")
_PAIRS = (
    ("pipedream", "naive_async"),
    ("pipeoptim", "pipedream"),
    ("pipemare", "pipedream"),
    (_V, "pipedream"),
    (f"{_V}_auto", "pipedream"),
    (_V332, "pipedream"),
    *((f"gpipe_n{n}", f"torch_gpipe_n{n}") for n in MICROBATCHES),
    *((f"1f1b_flush_n{n}", f"torch_1f1b_n{n}") for n in MICROBATCHES),
    ("pipedream", "sequential"),
    ("limit", "sequential"),
)


def rows_of(workload: Workload, device: str) -> list[Row]:
    """The rows in the order of measurement, with rows that are compared next to each other."""
    profile, asynchronous = measured_profile(workload, device), list[Row]()
    for name in _ASYNCHRONOUS:
        even, auto = even_bounds(workload, rules_of(name)), auto_bounds(profile, name, STAGES)
        asynchronous += [Row(name, name, even), *([Row(f"{name}_auto", name, auto)] if auto != even else [])]
        if name == "pipedream":
            of_v = auto_bounds(profile, name, 2 * STAGES, "schedule=1f1b_v")
            even_v = even_bounds(workload, rules_of(_V))
            asynchronous += [Row(_V, _V, even_v), Row(f"{_V}_auto", _V, of_v), Row(_V332, _V332, even_v)]
    own = next(row for row in asynchronous if row.name == "pipedream")
    cuts = {row.cut: row.bounds for row in (own, *asynchronous) if row.kind not in (_V, _V332)}
    limits = [Row("limit" if cut == own.cut else f"limit_{cut}", "limit", bounds) for cut, bounds in cuts.items()]
    synchronous = [
        Row(name, name, even_bounds(workload, rules_of(f"gpipe_n{n}")))
        for n in workload.microbatches
        for name in (f"{kind}_n{n}" for kind in _COMPARED)
    ]
    return [Row("sequential", "sequential", own.bounds), *limits, *asynchronous, *synchronous]


class Processes:
    """One worker process per stage, which measures rows on request."""

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
        """Measurements of one round of the row.

        Raises:
            EOFError: a process has ended.
        """
        for pipe in self._pipes:
            pipe.send(row)
        rounds: list[Round] = [pipe.recv() for pipe in self._pipes]
        seconds = slowest(each.seconds for each in rounds)
        (loss,) = (each.loss for each in rounds if each.loss is not None)
        idle = [each.idle for each in rounds if each.idle is not None]
        return Measured(self._batch / seconds, loss, idle, overhead(row.kind, self._steps, rounds))


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
    """Measures all rounds, after one that is not counted."""
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
        steps=options.steps - WARM_UP - COOL_DOWN,
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
    parser.add_argument(
        "--steps",
        type=int,
        default=11,
        help=f"of each row in a round; the first {WARM_UP} and last {COOL_DOWN} are not counted",
    )
    parser.add_argument("--repeats", type=int, help="rounds, after one that is not counted; default 10, for vgg16_bn 5")
    parser.add_argument("--alike", action="store_true", help="torch's processes keep freed memory, as pipetrain's do")
    parser.add_argument("--only", nargs="*", default=[], help="kinds of rows to measure; writes no file")
    options = parser.parse_args()
    if options.steps <= WARM_UP + COOL_DOWN:
        parser.error(f"--steps={options.steps}: more than {WARM_UP + COOL_DOWN} are needed for some to be counted")
    rows = rows_of(WORKLOADS[options.model], options.device)
    if options.device == "cuda" and torch.cuda.device_count() < STAGES:
        print("rows of torch are left out: its pipelines need a device for each process")
        rows = [row for row in rows if row.kind not in TORCH]
    measured = [row for row in rows if not options.only or row.kind in ("sequential", *options.only)]
    result = report(measured, measure(measured, options), options)
    show(result)
    if not options.only:
        model = "" if options.model == "resnet56" else f"_{options.model}"
        write(result, f"runtime{model}{'_cuda' * (options.device == 'cuda')}{'_alike' * options.alike}")


if __name__ == "__main__":
    main()
