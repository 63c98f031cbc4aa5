"""Cost of a step of a simulated pipeline of a tiny network, relative to a step of plain training.

`make bench`, or `python benchmarks/simulated.py`. The network is `gpt` with 16 blocks of width 32, on minibatches of 16
windows of 64 tokens of `dataset=austen`, with fused AdamW and one thread. Its step is little but Python and the launch
of operations. Plain training reads the same minibatches, and each row takes its steps in turn in every round. Times are
seconds of the processor, user and system; the ratio of a row is the median of those within each round.

Updates by `optimizer=muon` and `soap` are measured apart, for all weights of the same network, beside steps of
torch's Muon and AdamW, and of the class for matrices in `soap` and AdamW. The gradients stay the same.
"""

import argparse
import gc
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rows import machine
from torch import nn

from pipetrain.data.loader import Loader
from pipetrain.engine.executors.pipeline import build_pipeline
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.losses import TokenCrossEntropy
from pipetrain.engine.methods import Method
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.methods.pipeoptim import PipeOptim
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.models.chain import LayerChain
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.optim.stage_optimizer import StageOptimizer
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.schedules import ListSchedule
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.stage.base import Training
from pipetrain.runner.training.components.machine import keep_freed_memory
from pipetrain.zoo.data.text.text_files import austen
from pipetrain.zoo.models import gpt
from pipetrain.zoo.optim.matrices import Muon, Soap
from pipetrain.zoo.optim.soap import SoapOfMatrices

BATCH, TOKENS, WIDTH, BLOCKS = 16, 64, 32, 16
RULES: tuple[tuple[Method, ListSchedule], ...] = (
    (PipeDream(), OneFOneB()),
    (NaiveAsync(), OneFOneB()),
    (PipeOptim(), OneFOneB()),
    (Synchronous(), GPipe()),
)
OF_ADAMW = ("transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight")
"""Matrices that `model=gpt` leaves to AdamW."""
RESULT = Path(__file__).resolve().parents[1] / "results" / "bench" / "simulated.json"


def network() -> LayerChain:
    torch.manual_seed(0)
    return gpt.build(4096, TOKENS, layers=BLOCKS, width=WIDTH, heads=2)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.001, fused=True)


def plain(loader: Loader, steps: int) -> float:
    """Seconds of the processor for a step of plain training."""
    chain = network()
    optimizer = adamw(list(chain.module.parameters()))
    began = time.process_time()
    for (ids,), (targets,) in loader.samples(0, 0, steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(chain(ids).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    return (time.process_time() - began) / steps


def simulated(loader: Loader, steps: int, rule: tuple[Method, ListSchedule], num_stages: int) -> float:
    """The same of a simulated pipeline, from its first operation to its drain."""
    method, schedule = rule
    chain = network()
    cuts = [round(r * len(chain) / num_stages) for r in range(num_stages + 1)]
    bounds = list(itertools.pairwise(cuts))
    training = Training(OptimizerFactory(adamw, lambda _: 0.001), TokenCrossEntropy())
    run = build_pipeline(chain, bounds, PipelineRules(schedule, method, num_stages, 1), training)
    full = 2 * num_stages  # from here on memory does not grow
    run.train(loader, DrainInterval(0, 0, full, 0))
    began = time.process_time()
    run.train(loader, DrainInterval(0, full, full + steps, full))
    return (time.process_time() - began) / steps


def measured(stages: Sequence[int], steps: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of every row in each round."""
    loader = Loader(austen(positions=TOKENS).train, batch_size=BATCH)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        row = {"plain": plain(loader, steps)}
        for method, schedule in RULES:
            for num_stages in stages:
                gc.collect()
                name = "gpipe" if method.name == Synchronous.name else method.name
                row[f"{name} {num_stages}"] = simulated(loader, steps, (method, schedule), num_stages)
        for name, seconds in row.items():
            found.setdefault(name, []).append(seconds)
    return found


def optimizer_steps(kind: str, steps: int) -> tuple[float, float]:
    """Seconds of the processor for an update of a stage with all weights, and for one of the optimizers alone."""
    ours, theirs = (dict(network().module.named_parameters()) for _ in range(2))
    gradients = {name: 0.01 * torch.randn_like(weight) for name, weight in ours.items()}
    of_adamw = [name for name, weight in ours.items() if weight.dim() != 2 or name in OF_ADAMW]
    groups = [{"params": [ours[name] for name in OF_ADAMW], "algorithm": "adamw"}]
    groups += [{"params": [weight for name, weight in ours.items() if name not in OF_ADAMW]}]
    stage = StageOptimizer(Muon if kind == "muon" else Soap, ours, lambda _: 0.001, groups)
    matrices = [weight for name, weight in theirs.items() if name not in of_adamw]
    options = {"betas": (0.95, 0.95), "eps": 1e-8, "weight_decay": 0.01, "covariance_beta": None, "frequency": 10}
    plain: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=0.001)
        if kind == "muon"
        else SoapOfMatrices(matrices, lr=0.001, source="second", geometry="bilateral", **options),
        torch.optim.AdamW([theirs[name] for name in of_adamw], lr=0.001),
    ]
    for name, weight in theirs.items():
        weight.grad = gradients[name]
    seconds = [0.0, 0.0]
    for step in range(steps + 1):
        marks = [time.process_time()]
        stage.step(gradients)
        marks.append(time.process_time())
        for each in plain:
            each.step()
        marks.append(time.process_time())
        if step:  # the first one makes the states
            seconds = [
                sum_ + end - start for sum_, (start, end) in zip(seconds, itertools.pairwise(marks), strict=True)
            ]
    return seconds[0] / steps, seconds[1] / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, nargs="*", default=[1, 8, 16, 32])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as a run does
    rows = {}
    found = measured(options.stages, options.steps, options.rounds)
    for name, seconds in found.items():
        ratios = [own / base for own, base in zip(seconds, found["plain"], strict=True)]
        rows[name] = {"ms": round(1000 * statistics.median(seconds), 2), "ratio": round(statistics.median(ratios), 3)}
        print(f"{name:16} {rows[name]['ms']:7.2f} ms a step   ratio {rows[name]['ratio']:.2f}")
    for kind in ("muon", "soap"):
        pairs = [optimizer_steps(kind, 2 * options.steps // 5) for _ in range(options.rounds)]
        own, base = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratio = round(statistics.median(own / base for own, base in pairs), 3)
        rows[f"update {kind}"] = {"ms": round(1000 * own, 2), "ratio": ratio}
        print(f"{f'update {kind}':16} {1000 * own:7.2f} ms, alone {1000 * base:.2f} ms   ratio {ratio:.2f}")
    what = f"gpt, {BLOCKS} blocks of width {WIDTH}, {BATCH} x {TOKENS} tokens, AdamW, one thread; time of the processor"
    options.out.write_text(json.dumps({"what": what, "machine": machine("cpu"), "rows": rows}, indent=2) + "\n")
    print(f"\nwritten to {options.out}")


if __name__ == "__main__":
    main()
