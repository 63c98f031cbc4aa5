"""The parts of `scripts/gpu_report.py`: measurements on one device, one part in a process.

`python benchmarks/gpu_parts.py PART` prints a line of JSON for each result. All stages of a pipeline are simulated in
this process, so that a step of any pipeline does the work of a step of the plain loop, and the time beyond that is what
pipetrain costs. Within a round every row takes its steps in turn, and ratios are between rows of one round.

    speed_MODEL       samples or tokens per second, relative to a plain PyTorch loop
    kernels           kernels of each operation, and the share of time without one, as the profiler sees them
    memory            peak bytes of a pipeline on the device, and what the planner predicts for its stages together
    host_time         microseconds of the host for each operation of a small stage (`host_time.py`)
    compiled          speed with `train.compile=true`, and the seconds until the first steps are done
    bits              two processes and a simulation: whether weights and losses are equal bit by bit
"""

import argparse
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import host_time
import torch
from host_time import adamw
from rows import Measured, Rows, machine, summary
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from workloads import WORKLOADS

from pipetrain.engine import (
    ComputeOptions,
    CrossEntropy,
    GPipe,
    LayerChain,
    ListSchedule,
    Method,
    OneFOneB,
    PipeDream,
    Pipeline,
    PipeOptim,
    Synchronous,
    TokenCrossEntropy,
)
from pipetrain.engine.device_queue import synchronize
from pipetrain.engine.losses import Loss
from pipetrain.engine.stage.measurements import peak_memory_bytes, reset_peak_memory
from pipetrain.planning.profile.profile import Profile
from pipetrain.planning.profiling.auto_partition import AutoPartition, plan_by
from pipetrain.planning.profiling.layer_times import Measuring, measured_model
from pipetrain.runner.config.composition import composed
from pipetrain.runner.training.components.machine import device_at
from pipetrain.zoo.models import gpt, torchvision_models

STEPS, ROUNDS = 10, 5
MODELS = ("resnet50", "gpt2", "resnet56")
BITS = ("model=lenet5", "dataset.limit=320", "train.epochs=1", "partition.stages=2", "deterministic=true")
Train = Callable[[int], float]
"""Trains for a number of steps; the mean loss."""


@dataclass(frozen=True)
class Workload:
    """A model and a minibatch of random data.

    Attributes:
        unit: what `count` of a minibatch counts: samples or tokens.
    """

    build: Callable[[], LayerChain]
    inputs: Tensor
    targets: Tensor
    loss: Loss
    arithmetic: ComputeOptions
    unit: str
    count: int

    def chain(self) -> LayerChain:
        torch.manual_seed(0)
        return self.build()


def pictures(build: Callable[[], LayerChain], batch: int, side: int, arithmetic: ComputeOptions) -> Workload:
    images, labels = torch.randn(batch, 3, side, side), torch.randint(10, (batch,))
    return Workload(build, images, labels, CrossEntropy(), arithmetic, "samples", batch)


def text(*, batch: int, tokens: int, vocabulary: int, layers: int, width: int) -> Workload:
    build = partial(gpt.build, vocabulary, tokens, layers=layers, width=width, heads=width // 64, dropout=0.1)
    ids = torch.randint(vocabulary, (batch, tokens + 1))
    loss, bf16 = TokenCrossEntropy(), ComputeOptions("bf16")
    return Workload(build, ids[:, :-1].clone(), ids[:, 1:].clone(), loss, bf16, "tokens", batch * tokens)


def workload(name: str, *, tiny: bool) -> Workload:
    channels_last = ComputeOptions("bf16", channels_last=True)
    if name == "resnet50":
        build = partial(torchvision_models.resnet, 18 if tiny else 50, 3, 1000)
        return pictures(build, *((4, 64) if tiny else (64, 224)), channels_last)
    if name.startswith("gpt2"):
        blocks = 2 if tiny or name == "gpt2_short" else 12
        if tiny:
            return text(batch=4, tokens=16, vocabulary=64, layers=blocks, width=64)
        return text(batch=4, tokens=1024, vocabulary=50257, layers=blocks, width=768)
    return pictures(WORKLOADS["resnet56"].build, *((4, 16) if tiny else (64, 32)), ComputeOptions())


class Row(NamedTuple):
    """A pipeline of the report.

    Attributes:
        stages: their number, or the first layer of each but the first.
        microbatches: of a minibatch.
    """

    name: str
    stages: int | list[int]
    schedule: ListSchedule
    method: Method
    microbatches: int = 1

    @property
    def depth(self) -> int:
        """Number of stages."""
        return self.stages if isinstance(self.stages, int) else len(self.stages) + 1


ONE = Row("one_stage", 1, GPipe(), Synchronous())
ROWS = [
    ONE,
    *(
        row
        for stages in (2, 4)
        for row in (
            Row(f"gpipe_{stages}", stages, GPipe(), Synchronous(), stages),
            Row(f"pipedream_{stages}", stages, OneFOneB(), PipeDream()),
            Row(f"pipeoptim_{stages}", stages, OneFOneB(), PipeOptim()),
        )
    ),
]


def say(name: str, value: object) -> None:
    """Prints a result for the report to collect."""
    print(json.dumps({name: value}), flush=True)


class Bench:
    """Trains workloads on a device."""

    def __init__(self, device: torch.device, *, tiny: bool) -> None:
        self.device = device
        self.tiny = tiny
        self.steps, self.rounds = (2, 1) if tiny else (STEPS, ROUNDS)

    def workload(self, name: str) -> Workload:
        found = workload(name, tiny=self.tiny)
        if self.device.type != "cuda":
            return found
        return replace(found, inputs=found.inputs.pin_memory(), targets=found.targets.pin_memory())

    def plain(self, work: Workload) -> Train:
        """A plain PyTorch loop with the same optimizer."""
        chain, arithmetic, device = work.chain(), work.arithmetic, self.device
        chain.module.to(device)
        arithmetic.prepare(chain.module)
        optimizer = adamw(list(chain.module.parameters()))

        def train(steps: int) -> float:
            losses = []
            for _ in range(steps):
                inputs, targets = (each.to(device, non_blocking=True) for each in (work.inputs, work.targets))
                with torch.autocast(device.type, torch.bfloat16) if arithmetic.mixed else nullcontext():
                    outputs = chain(*arithmetic.cast_inputs((inputs,)))
                loss = work.loss(outputs.float(), targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
            return torch.stack(losses).mean().item()

        return train

    def piped(self, work: Workload, row: Row) -> Train:
        """A simulated pipeline."""
        pipeline = Pipeline(
            work.chain(),
            row.stages,
            schedule=row.schedule,
            method=row.method,
            optimizer=adamw,
            loss=work.loss,
            microbatches=row.microbatches,
            device=self.device,
            arithmetic=work.arithmetic,
        )
        return lambda steps: statistics.fmean(pipeline.train([(work.inputs, work.targets)] * steps))

    def compare(self, name: str, work: Workload, trainers: dict[str, Train], reference: str) -> None:
        """Samples or tokens per second of all rows, which take turns; said after each round but the first."""
        rows, pairs = Rows(), [(row, reference) for row in trainers if row != reference]
        for number in range(self.rounds + 1):
            for row in sorted(trainers, reverse=number % 2 > 0):
                synchronize(self.device)
                began = time.perf_counter()
                loss = trainers[row](self.steps)
                synchronize(self.device)
                if number:
                    rows.add(row, Measured(self.steps * work.count / (time.perf_counter() - began), loss))
            if number:
                unit = f"{work.unit} per second, median over {number} rounds"
                say(name, summary(name, rows, pairs, unit=unit))

    # -- parts -------------------------------------------------------------------------------------------------------

    def speed(self, name: str) -> None:
        work = self.workload(name)
        trainers = {"plain": self.plain(work), **{row.name: self.piped(work, row) for row in ROWS}}
        self.compare(name, work, trainers, "plain")

    def kernels(self) -> None:
        for name in MODELS:
            work = self.workload(name)
            for row in (None, ONE, *ROWS[1:4]):
                train = self.plain(work) if row is None else self.piped(work, row)
                train(2)
                operations = 3 if row is None else row.depth * (2 * row.microbatches + 1)
                say(f"{name}, {row.name if row else 'plain'}", self.profiled(train, operations))

    def profiled(self, train: Train, operations: int) -> dict[str, float]:
        """Kernels and copies of the device for each of the operations of a step, and its idle share.

        The profiler slows the host down, and so makes the idle share larger.
        """
        kind = DeviceType.CUDA if self.device.type == "cuda" else DeviceType.CPU
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if kind is DeviceType.CUDA else [])]
        with profile(activities=activities) as found:
            train(self.steps)
            synchronize(self.device)
        kernels = [each for each in found.events() if each.device_type == kind and not each.is_user_annotation]
        spans = sorted((each.time_range.start, each.time_range.end) for each in kernels)
        busy, reached = 0.0, spans[0][0]
        for start, end in spans:
            busy += max(0.0, end - max(start, reached))
            reached = max(reached, end)
        return {
            "kernels_per_operation": round(len(spans) / (self.steps * operations), 1),
            "idle": round(1 - busy / (reached - spans[0][0]), 3),
        }

    def memory(self) -> None:
        for name in MODELS:
            work = self.workload(name)
            how = Measuring(work.loss, work.arithmetic, self.device, repeats=3)
            layers, update = measured_model(work.chain(), ((work.inputs,), (work.targets,)), how)
            edges = tuple(itertools.pairwise(range(len(layers))))
            costs = Profile(layers, edges, len(work.inputs), 1e10, update_bytes_per_s=update)
            for row in ROWS[:4]:
                say(f"{name}, {row.name}", self.peak(work, row, costs))

    def peak(self, work: Workload, row: Row, costs: Profile) -> dict[str, float]:
        """Peak bytes, predicted and measured, with the planner's cuts."""
        method = row.name.partition("_")[0] if row is not ONE else "gpipe"
        choices = ["optimizer=adamw", f"method={method}", f"train.microbatches={row.microbatches}"]
        settings = composed([*choices, "partition=auto", f"partition.stages={row.stages}"])
        plan = plan_by(settings, AutoPartition(row.depth), costs)
        train = self.piped(work, row._replace(stages=[stage.layers[0] for stage in plan.stages[1:]]))
        gc.collect()  # what the row before has left
        reset_peak_memory(self.device)
        train(self.steps)
        predicted, found = sum(stage.memory_bytes for stage in plan.stages), peak_memory_bytes(self.device)
        return {"predicted": predicted, "measured": found, "ratio": round(found / predicted, 3)}

    def host_time(self) -> None:
        names = ["gpipe", "naive_async", "pipedream", "pipeoptim"]
        steps, rounds = (24, 1) if self.tiny else (100, 3)
        for precision in ("fp32", "bf16"):
            setup = host_time.Setup(precision, 1, self.device.type)
            say(str(setup), host_time.table(setup, steps, rounds, names))

    def compiled(self) -> None:
        work = self.workload("gpt2_short")  # each layer takes seconds
        quick = replace(work, arithmetic=replace(work.arithmetic, compiled=True))
        began = time.perf_counter()
        compiled = self.piped(quick, ONE)
        compiled(1)
        say("seconds of the first step", round(time.perf_counter() - began, 1))
        self.compare("gpt2 of two blocks", work, {"compiled": compiled, "as_is": self.piped(work, ONE)}, "as_is")

    def bits(self) -> None:
        for method in ("pipedream", "pipeoptim"):
            with tempfile.TemporaryDirectory() as folder:
                ours = self.run_of(Path(folder) / "distributed", f"method={method}")
                theirs = self.run_of(Path(folder) / "simulated", f"method={method}", "executor=simulated")
            equal = all(ours[field] == theirs[field] for field in ("weights_sha256", "loss_sha256"))
            say(method, {"equal": equal, **{key: ours[key] for key in ("transport", "transport_reason")}})

    def run_of(self, folder: Path, *words: str) -> dict[str, Any]:
        """The summary of a run; its processes use NCCL although they share a GPU, as if on different machines."""
        shared = ["support.shared_gpu_cli"] if self.device.type == "cuda" else []
        options = [f"device={self.device.type}", "train.tf32=false", f"hydra.run.dir={folder}"]
        command = [sys.executable, "-m", *shared, "pipetrain", "run", *BITS, *options, *words]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    speeds = [f"speed_{model}" for model in MODELS]
    parser.add_argument("part", choices=[*speeds, "kernels", "memory", "host_time", "compiled", "bits"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models, few steps: to try the report itself")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    say("machine", machine(options.device))
    bench = Bench(device_at(options.device, 0), tiny=options.tiny)
    part, _, model = options.part.partition("speed_")
    if model:
        bench.speed(model)
    else:
        getattr(bench, part)()


if __name__ == "__main__":
    main()
