"""What a step of a very deep simulated pipeline costs beside a step of plain training, and what memory it takes.

`make bench`, or `python benchmarks/finegrained.py`. Time: ResNet-50 (CIFAR stem) on 32 x 32 images under PipeMare,
one thread; plain training and each number of stages take their steps in turn, so that a busy machine slows them alike.
Copying delayed weights is reported apart and taken off. A tiny network, whose step is little but Python: two blocks of
`gpt`, 16 wide, under each of several methods, in seconds of the processor. Memory: ResNet-20, each number of stages in
a process of its own, run until the history is at its longest; that history beside the growth of all tensors and of
resident memory.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import platform
import resource
import statistics
import time
import warnings
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.utils.data import Dataset
from typing_extensions import override

from pipetrain.data.loader import Loader
from pipetrain.engine.executors.finegrained import FinegrainedExecutor
from pipetrain.engine.executors.hooks import OnStep, RunHooks
from pipetrain.engine.executors.pipeline import build_finegrained_pipeline
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.losses import CrossEntropy, StepLoss, TokenCrossEntropy
from pipetrain.engine.methods import Method
from pipetrain.engine.methods.hogwild import Hogwild
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.methods.pipemare import PipeMare
from pipetrain.engine.methods.pipeoptim import PipeOptim
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.models.weight_units import weight_units
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.schedules import ListSchedule
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.pipelined_backprop import PipeMareSchedule
from pipetrain.engine.stage.base import Training
from pipetrain.runner.partition.finegrained import stage_bounds
from pipetrain.zoo.models import gpt, resnet_cifar, torchvision_models

BATCH = 32
TINY_BATCH, TINY_TOKENS, TINY_VOCABULARY = 8, 32, 80
TINY_RULES: tuple[tuple[Method, ListSchedule], ...] = (
    (NaiveAsync(), OneFOneB()),
    (PipeDream(), OneFOneB()),
    (PipeOptim(), OneFOneB()),
    (PipeMare(), PipeMareSchedule()),
    (Hogwild(), OneFOneB(depth=1)),
)
RESULT = Path(__file__).resolve().parents[1] / "results" / "bench" / "finegrained.json"


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.001, momentum=0.9, weight_decay=5e-4)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.001, fused=True)


def images(count: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(count, 3, 32, 32), torch.randint(0, 10, (count,))


def executor(chain: LayerChain, num_stages: int, on_step: OnStep) -> FinegrainedExecutor:
    bounds = stage_bounds(len(weight_units(chain)), num_stages)
    rules = PipelineRules(PipeMareSchedule(), PipeMare(), num_stages, 1)
    training = Training(OptimizerFactory(sgd, lambda k: 0.001 / (1 + k)), CrossEntropy())
    return build_finegrained_pipeline(chain, bounds, rules, training, RunHooks(on_step))


class Plain:
    """A step of plain training at a time."""

    def __init__(self, chain: LayerChain) -> None:
        self.chain = chain
        self.optimizer = sgd(list(chain.module.parameters()))
        self.x, self.y = images(BATCH)

    def step(self) -> None:
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.chain(self.x), self.y).backward()
        self.optimizer.step()


class Again(Dataset[tuple[Tensor, int]]):
    """The same few images over and over."""

    def __init__(self, count: int, length: int) -> None:
        self.x, self.y = images(count)
        self.length = length

    def __len__(self) -> int:
        return self.length

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index % len(self.x)], int(self.y[index % len(self.y)])


class EnoughError(Exception):
    """Ends a run after its first steps."""


class Simulated:
    """Steps of a simulated pipeline; the seconds that it copied weights for are counted apart.

    The run would be long enough for every step to copy weights, as in the steady state, and ends after a few.
    """

    def __init__(self, chain: LayerChain, num_stages: int, steps: int) -> None:
        self.minibatches = 2 * num_stages + steps
        self.loader = Loader(Again(BATCH, self.minibatches * BATCH), batch_size=BATCH, shuffle=False)
        self.ends: list[float] = []
        self.copied: list[float] = []
        self.executor = executor(chain, num_stages, self.on_step)
        self.steps = steps

    def on_step(self, _t: int, _loss: StepLoss) -> None:
        self.ends.append(time.perf_counter())
        self.copied.append(self.executor.copy_seconds)
        if len(self.ends) > self.steps:
            raise EnoughError

    def run(self) -> tuple[float, float]:
        """Median seconds of a step, and those of copying in it; the first step aside."""
        self.ends.append(time.perf_counter())
        self.copied.append(0.0)
        with contextlib.suppress(EnoughError):
            self.executor.train(self.loader, DrainInterval.whole(self.minibatches))
        whole = [b - a for a, b in zip(self.ends[1:], self.ends[2:], strict=False)]
        copying = [b - a for a, b in zip(self.copied[1:], self.copied[2:], strict=False)]
        return statistics.median(whole), statistics.median(copying)


def time_of(stages: list[int], steps: int, rounds: int) -> dict[str, dict[str, float]]:
    measured: dict[str, list[tuple[float, float]]] = {"plain": [], **{str(D): [] for D in stages}}
    for _ in range(rounds):
        plain = Plain(torchvision_models.resnet_cifar(50, channels=3, classes=10))
        seconds = []
        for _ in range(steps):
            began = time.perf_counter()
            plain.step()
            seconds.append(time.perf_counter() - began)
        measured["plain"].append((statistics.median(seconds[1:]), 0.0))
        for D in stages:
            chain = torchvision_models.resnet_cifar(50, channels=3, classes=10)
            measured[str(D)].append(Simulated(chain, D, steps).run())
    return {
        name: {"seconds": statistics.median(s for s, _ in pairs), "copying": statistics.median(c for _, c in pairs)}
        for name, pairs in measured.items()
    }


class Texts(Dataset[tuple[Tensor, Tensor]]):
    """Random tokens, and those that follow them."""

    def __init__(self, count: int) -> None:
        torch.manual_seed(1)
        self.ids = torch.randint(0, TINY_VOCABULARY, (count, TINY_TOKENS + 1))

    def __len__(self) -> int:
        return len(self.ids)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.ids[index, :-1], self.ids[index, 1:]


def tiny_gpt() -> LayerChain:
    return gpt.build(TINY_VOCABULARY, TINY_TOKENS, layers=2, width=16, heads=2, dropout=0.0, tied=False)


def tiny_plain(texts: Texts, steps: int) -> float:
    """Seconds of the processor for a step of plain training."""
    chain = tiny_gpt()
    optimizer = adamw(list(chain.module.parameters()))
    began = time.process_time()
    for step in range(steps):
        ids = texts.ids[TINY_BATCH * step : TINY_BATCH * (step + 1)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(chain(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
    return (time.process_time() - began) / steps


def tiny_simulated(texts: Texts, steps: int, rule: tuple[Method, ListSchedule], num_stages: int) -> float:
    """The same of a simulated pipeline, from its start, before which nothing is planned, to its drain."""
    chain = tiny_gpt()
    rules = PipelineRules(rule[1], rule[0], num_stages, 1)
    training = Training(OptimizerFactory(adamw, lambda _: 0.001), TokenCrossEntropy())
    run = build_finegrained_pipeline(chain, stage_bounds(len(weight_units(chain)), num_stages), rules, training)
    loader = Loader(texts, batch_size=TINY_BATCH, shuffle=False)
    began = time.process_time()
    run.train(loader, DrainInterval.whole(steps))
    return (time.process_time() - began) / steps


def tiny_steps(stages: list[int], steps: int, rounds: int) -> dict[str, float]:
    """Plain training, and each method in each number of stages: median seconds of the processor for a step."""
    texts = Texts(TINY_BATCH * steps)
    measured: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        found = {"plain": tiny_plain(texts, steps)}
        for rule in TINY_RULES:
            for num_stages in stages:
                found[f"{rule[0].name} in {num_stages}"] = tiny_simulated(texts, steps, rule, num_stages)
        for name, seconds in found.items():
            measured.setdefault(name, []).extend([seconds] if number else [])  # the first round warms up
    return {name: statistics.median(seconds) for name, seconds in measured.items()}


def resident() -> int:
    """Bytes of this process in memory now, without what the allocator of C keeps between small copies for later."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def alive() -> int:
    """Bytes of all tensors of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storages = [thing.untyped_storage() for thing in gc.get_objects() if isinstance(thing, Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def memory(_index: int, num_stages: int, out: str) -> None:
    """Resident memory before and after a run of `num_stages` stages whose history is at its longest, and its bytes."""
    torch.set_num_threads(1)
    chain = resnet_cifar.build(20, channels=3, classes=10)
    warm = Plain(chain)
    warm.x, warm.y = warm.x[:4], warm.y[:4]
    warm.step()
    steps = 4 * num_stages + 4
    loader = Loader(Again(4, 4 * steps), batch_size=4, shuffle=False)
    seen: list[tuple[int, int]] = []
    longest = 2 * num_stages + 8

    def look(t: int, _loss: StepLoss) -> None:
        if t in (0, longest):
            seen.append((alive(), resident()))

    run = executor(chain, num_stages, look)
    run.train(loader, DrainInterval.whole(steps))
    (tensors, memory_then), (more_tensors, memory_now) = seen
    history = sum(stage.report()["weight_bytes_peak"] for stage in run.stages)
    newest = sum(parameter.nbytes for parameter in chain.module.parameters())
    growth = {
        "history_bytes": history - newest,
        "tensor_growth_bytes": more_tensors - tensors,
        "resident_growth_bytes": memory_now - memory_then,
    }
    Path(out).write_text(json.dumps(growth))


def keep(result: Mapping[str, object]) -> None:
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


def show_tiny(tiny: dict[str, float]) -> None:
    print("\ntwo blocks of gpt, 16 wide, batch 8, AdamW, one thread, seconds of the processor\n")
    for name, seconds in tiny.items():
        print(f"{name:20} {1000 * seconds:6.2f} ms a step   ratio {seconds / tiny['plain']:.2f}")
    print(f"\nwritten to {RESULT}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, nargs="*", default=[107, 214, 1712])
    parser.add_argument("--memory-stages", type=int, nargs="*", default=[65, 130, 260])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny-stages", type=int, nargs="*", default=[1, 8, 107])
    parser.add_argument("--tiny-steps", type=int, default=300)
    parser.add_argument("--only-tiny", action="store_true", help="measure the tiny network alone and keep the rest")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tiny = tiny_steps(options.tiny_stages, options.tiny_steps, options.rounds)
    if options.only_tiny:
        keep(json.loads(RESULT.read_text()) | {"tiny": tiny})
        show_tiny(tiny)
        return
    rows = time_of(options.stages, options.steps, options.rounds)
    plain = rows["plain"]["seconds"]
    for row in rows.values():
        row["ratio"] = round((row["seconds"] - row["copying"]) / plain, 4)
    used = {}
    for D in options.memory_stages:
        out = RESULT.with_name(f"memory-{D}.partial")
        out.parent.mkdir(parents=True, exist_ok=True)
        mp.spawn(memory, (D, str(out)), nprocs=1)
        used[str(D)] = json.loads(out.read_text())
        out.unlink()
    result = {
        "what": f"ResNet-50 (CIFAR stem), batch {BATCH}, PipeMare, one thread; memory with ResNet-20",
        "date": date.today().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "rows": rows,
        "memory": used,
        "tiny": tiny,
    }
    keep(result)
    print(f"\n{result['what']}\n")
    for name, row in rows.items():
        label = name if name == "plain" else f"{name} stages"
        apart = "" if name == "plain" else f"   copying {1000 * row['copying']:.0f} ms apart   ratio {row['ratio']:.3f}"
        print(f"{label:12} {1000 * row['seconds']:8.0f} ms a step{apart}")
    print()
    for name, row in used.items():
        history, tensors, grown = (f"{value / 1e6:.1f} MB" for value in row.values())
        print(f"{name:>5} stages   history of weights {history}   all tensors grew by {tensors}   resident by {grown}")
    show_tiny(tiny)


if __name__ == "__main__":
    main()
