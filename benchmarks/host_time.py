"""Time of the host for the operations of a stage, relative to the same stage in a plain PyTorch loop.

`make bench`, or `python benchmarks/host_time.py`. The stage is the second of four, each of eight linear layers of width
64 with their ReLUs, on four samples, with fused AdamW and one thread: its kernels take next to no time, as on a GPU,
where the host only launches them. All stages are simulated in this process.

Times are seconds of the thread that computes. Processes that take the core or its caches lengthen some of them, and a
virtual machine may be slow for seconds. So the plain loop and the rows run in turn, in short rounds, and the time of an
operation is the 5 % quantile over all rounds; of F and B of several microbatches, which may read their weights in
different ways, the mean of each one's.

Calls are operations that reach torch's dispatcher, those of autograd included.
"""

import argparse
import gc
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rows import machine
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from pipetrain.engine import (
    ComputeOptions,
    GPipe,
    ListSchedule,
    Method,
    NaiveAsync,
    OneFOneB,
    OneFOneB2BW,
    OneFOneBFlush,
    PipeDream,
    PipeDream2BW,
    Pipeline,
    PipeMare,
    PipeMareSchedule,
    PipeOptim,
    SpecTrain,
    Synchronous,
)
from pipetrain.engine.executors.stage_runner import StageRunner
from pipetrain.engine.schedules import Kind

WIDTH, LAYERS, SAMPLES, STAGES, MEASURED = 64, 8, 4, 4, 1
RULES: dict[str, tuple[Method, ListSchedule]] = {
    "gpipe": (Synchronous(), GPipe()),
    "1f1b_flush": (Synchronous(), OneFOneBFlush()),
    "naive_async": (NaiveAsync(), OneFOneB()),
    "pipedream": (PipeDream(), OneFOneB()),
    "pipedream_2bw": (PipeDream2BW(), OneFOneB2BW()),
    "pipeoptim": (PipeOptim(), OneFOneB()),
    "spectrain": (SpecTrain(), OneFOneB()),
    "pipemare": (PipeMare(), PipeMareSchedule()),
}
KINDS = (Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE)
RESULT = Path(__file__).resolve().parents[1] / "results" / "bench" / "host_time.json"


class Setup(NamedTuple):
    """What the plain loop and the pipeline share."""

    precision: str
    microbatches: int
    device: str = "cpu"

    @override
    def __str__(self) -> str:
        return f"{self.precision}, N = {self.microbatches}"


def stage_layers() -> list[nn.Module]:
    return [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


class Calls(TorchDispatchMode):
    """Counts operations."""

    number = 0

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


class Measured:
    """Values of each kind of operation: seconds of the thread, or numbers of calls."""

    def __init__(self, device: str, *, calls: bool) -> None:
        self._calls = calls
        # on a GPU, another thread launches the backward's kernels
        self._now = time.thread_time if device == "cpu" else time.perf_counter
        self._values: dict[Kind, list[float]] = defaultdict(list)

    @contextmanager
    def operation(self, kind: Kind) -> Iterator[None]:
        if self._calls:
            with Calls() as calls:
                yield
            self._values[kind].append(calls.number)
        else:
            began = self._now()
            yield
            self._values[kind].append(self._now() - began)

    def warm(self, kind: Kind) -> list[float]:
        """Values of the second half, in which buffers are warm."""
        values = self._values[kind]
        return values[len(values) // 2 :]


def plain(setup: Setup, steps: int, measured: Measured) -> None:
    """Trains the stage by itself, on inputs and output gradients that exist already."""
    torch.manual_seed(0)
    module = nn.Sequential(*stage_layers()).to(setup.device)
    optimizer = adamw(list(module.parameters()))
    given = [torch.randn(SAMPLES, WIDTH, device=setup.device) for _ in range(setup.microbatches)]
    gradient = torch.randn(SAMPLES, WIDTH, device=setup.device) / SAMPLES
    bf16 = setup.precision == "bf16"
    if bf16:
        gradient = gradient.bfloat16()
    for _ in range(steps):
        for tensor in given:
            with measured.operation(Kind.FORWARD):
                inputs = tensor.detach().requires_grad_()
                with torch.autocast(setup.device, torch.bfloat16) if bf16 else nullcontext():
                    outputs = module(inputs)
            with measured.operation(Kind.BACKWARD):
                outputs.backward(gradient)
        with measured.operation(Kind.UPDATE):
            optimizer.step()
            optimizer.zero_grad()


def piped(name: str, setup: Setup, steps: int, measured: Measured) -> None:
    """Trains a simulated pipeline of such stages, and measures the operations of one."""
    method, schedule = RULES[name]
    torch.manual_seed(0)
    pipeline = Pipeline(
        nn.Sequential(*(layer for _ in range(STAGES) for layer in stage_layers())),
        [2 * LAYERS * r for r in range(1, STAGES)],
        schedule=schedule,
        method=method,
        optimizer=adamw,
        loss=nn.CrossEntropyLoss(),
        microbatches=setup.microbatches,
        device=setup.device,
        arithmetic=ComputeOptions(precision=setup.precision),
    )
    rows = SAMPLES * setup.microbatches
    data = [(torch.randn(rows, WIDTH), torch.randint(WIDTH, (rows,))) for _ in range(steps)]
    with measuring(measured):
        pipeline.train(data)


@contextmanager
def measuring(measured: Measured) -> Iterator[None]:
    step: Callable[[StageRunner], None] = StageRunner.step

    def timed(runner: StageRunner) -> None:
        if runner.stage.index != MEASURED:
            step(runner)
            return
        assert runner.next is not None
        with measured.operation(runner.next.kind):
            step(runner)

    StageRunner.step = timed  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        StageRunner.step = step  # type: ignore[method-assign, assignment]


def names_of(setup: Setup) -> list[str]:
    """Methods that run with these microbatches: PipeDream-2BW needs one for each stage."""
    return [name for name in RULES if name != "pipedream_2bw" or setup.microbatches >= STAGES]


def run(name: str, setup: Setup, steps: int, *, calls: bool = False) -> Measured:
    """Seconds, or calls, of F, B and U."""
    gc.collect()
    measured = Measured(setup.device, calls=calls)
    if name == "plain":
        plain(setup, steps, measured)
    else:
        piped(name, setup, steps, measured)
    return measured


def low(values: Sequence[float], microbatches: int) -> float:
    """Mean over the microbatches of the 5 % quantile of each."""
    return statistics.fmean(statistics.quantiles(values[j::microbatches], n=20)[0] for j in range(microbatches))


def table(setup: Setup, steps: int, rounds: int, names: Sequence[str]) -> dict[str, Any]:
    """Rows of one table."""
    found: dict[str, list[Measured]] = {name: [] for name in ("plain", *names)}
    for _ in range(rounds):
        for name, each in found.items():
            each.append(run(name, setup, steps))
    rows: dict[str, Any] = {}
    print(f"\n{setup}\n{'':16}{'F':>7}{'B':>7}{'U':>7}   calls")
    for name, each in found.items():
        pooled = [[value for measured in each for value in measured.warm(kind)] for kind in KINDS]
        micros = [1e6 * low(values, setup.microbatches) for values in pooled]
        ratios = [mine / theirs for mine, theirs in zip(micros, rows["plain"]["us"] if rows else micros, strict=True)]
        counted = run(name, setup, 24, calls=True)
        calls = [round(statistics.fmean(counted.warm(kind))) for kind in KINDS]
        rows[name] = {"us": [round(each, 1) for each in micros], "ratio": [round(each, 2) for each in ratios]}
        rows[name]["calls"] = calls
        shown = micros if name == "plain" else ratios
        places = "7.0f" if name == "plain" else "7.2f"
        print(f"{name:16}{''.join(format(each, places) for each in shown)}   {' / '.join(map(str, calls))}", flush=True)
    return rows


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The text at its own line breaks, and the defaults."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Help)
    parser.add_argument("--steps", type=int, default=40, help="minibatches of a row in a round")
    parser.add_argument("--rounds", type=int, default=12, help="turns that the plain loop and the rows take")
    parser.add_argument("--methods", nargs="*", choices=RULES, default=[*RULES], help="rows")
    parser.add_argument("--precisions", nargs="*", choices=["fp32", "bf16"], default=["fp32", "bf16"], help="of tables")
    parser.add_argument("--microbatches", nargs="*", type=int, default=[1, 4], help="of tables")
    parser.add_argument("--out", type=Path, default=RESULT, help="file of the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # tables that are not measured now stay
    tables = json.loads(options.out.read_text())["tables"] if options.out.exists() else {}
    for precision in options.precisions:
        for microbatches in options.microbatches:
            setup = Setup(precision, microbatches)
            names = [name for name in names_of(setup) if name in options.methods]
            tables[str(setup)] = table(setup, options.steps, options.rounds, names)
    what = (
        f"stage {MEASURED} of {STAGES}, each {LAYERS} x Linear+ReLU of width {WIDTH}, {SAMPLES} samples, fused AdamW, "
        "one thread; F, B and U: microseconds of the thread, ratio to the plain loop, calls of torch"
    )
    options.out.write_text(json.dumps({"what": what, "machine": machine("cpu"), "tables": tables}, indent=2) + "\n")
    print(f"\nwritten to {options.out}")


if __name__ == "__main__":
    main()
