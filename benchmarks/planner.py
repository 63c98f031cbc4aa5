"""Predicted against measured throughput and memory of pipelines on this machine (PipeDream § 5.5, fig. 15).

`make bench-planner`, or `python benchmarks/planner.py`. Every pipeline, a model cut at some places under a method over
links of some bandwidth, is predicted from the model's profile, then run for some steps by `pipetrain run`. Links are
slowed by a hook of the runtime, which delays what is sent as a network would. Where there are fewer cores than
processes, a device is predicted to have its share of them. Wants a quiet machine.
"""

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from pipetrain.config.composition import composed
from pipetrain.planner.memory import MemoryModel
from pipetrain.run.cores import usable_cores
from pipetrain.run.predicting import ProfiledRun
from pipetrain.tracking.throughput import MEASURED

RESULT = Path(__file__).resolve().parents[1] / "results" / "bench" / "planner.json"
CORRELATION, OF_BEST, MEMORY = 0.95, 0.05, 0.10
"""What is asked of the predictions: the least correlation, and the largest shares by which they may be off."""
CUTS = {
    "lenet5": ([2], [4], [6], [8], [2, 6], [4, 8]),
    "resnet20": ([2], [4], [6], [8], [3, 6], [5, 8]),
    "alexnet_cifar": ([2], [5], [8], [11], [3, 8], [6, 11]),
}
METHODS = {"pipedream": 1, "gpipe": 4}
"""Method -> its microbatches."""
GIGABYTES_PER_S = (1.0, 0.02)
STEPS = 40


@dataclass(frozen=True)
class Pipeline:
    """What is predicted and run."""

    model: str
    boundaries: Sequence[int]
    method: str
    gigabytes_per_s: float

    @property
    def processes(self) -> int:
        return len(self.boundaries) + 1

    def words(self) -> list[str]:
        """The overrides of `pipetrain run` and of its prediction."""
        share = min(1.0, usable_cores() / self.processes)
        return [
            f"model={self.model}",
            f"method={self.method}",
            "partition=explicit",
            f"partition.boundaries={list(self.boundaries)}",
            f"train.microbatches={METHODS[self.method]}",
            "train.batch_size=64",
            f"train.max_steps={STEPS}",
            "eval.every_epochs=0",
            "threads=1",
            "device=cpu",
            "planner.bandwidth=false",
            f"topology.gigabytes_per_s=[{self.gigabytes_per_s}]",
            f"topology.speeds={[share] * self.processes}",
        ]


@dataclass(frozen=True)
class Outcome:
    """Samples/s, and the bytes of the stage that holds most, as predicted and as measured."""

    pipeline: Pipeline
    predicted: float
    measured: float
    predicted_bytes: int
    measured_bytes: int


def outcome(pipeline: Pipeline) -> Outcome:
    settings = composed(pipeline.words())
    run = ProfiledRun.of(settings)
    ((_, prediction),) = run.predictions()
    summary = _run(pipeline)
    rules = MemoryModel.of(settings).phases[0]
    counted = [(1 + rules.states) * size for size in run.cut.weight_bytes]  # gradients and the optimizer's state
    measured = [
        stage["weight_bytes_peak"] + stage["activation_bytes_peak"] + others
        for stage, others in zip(summary["per_stage"], counted, strict=True)
    ]
    predicted = [stage.memory_bytes or 0 for stage in prediction.stages]
    return Outcome(pipeline, prediction.samples_per_s or 0.0, summary[MEASURED], max(predicted), max(measured))


def _run(pipeline: Pipeline) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pipetrain", "run", *pipeline.words(), f"hydra.run.dir={folder}/run"]
        environment = {**os.environ, "PIPETRAIN_LINK_GIGABYTES_PER_S": str(pipeline.gigabytes_per_s)}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        summary: dict[str, Any] = json.loads((Path(folder) / "run" / "summary.json").read_text())
        return summary


def pipelines(models: Sequence[str], *, quick: bool) -> Iterator[Pipeline]:
    bandwidths = GIGABYTES_PER_S[1:] if quick else GIGABYTES_PER_S
    methods = list(METHODS)[:1] if quick else METHODS
    for model, method, bandwidth in itertools.product(models, methods, bandwidths):
        for boundaries in CUTS[model][:3] if quick else CUTS[model]:
            yield Pipeline(model, boundaries, method, bandwidth)


def chosen_share(outcomes: Sequence[Outcome]) -> float:
    """The least, over groups that differ in their cut alone, of the chosen pipeline's share of the best one's rate."""

    def group(each: Outcome) -> tuple[str, str, float, int]:
        of = each.pipeline
        return of.model, of.method, of.gigabytes_per_s, of.processes

    shares = []
    for _, members in itertools.groupby(sorted(outcomes, key=group), group):
        several = list(members)
        chosen = max(several, key=lambda each: each.predicted)
        shares.append(chosen.measured / max(each.measured for each in several))
    return min(shares)


def summary_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    predicted = np.array([each.predicted for each in outcomes])
    measured = np.array([each.measured for each in outcomes])
    off = [abs(each.predicted_bytes / each.measured_bytes - 1) for each in outcomes]
    return {
        "correlation": float(np.corrcoef(predicted, measured)[0, 1]),
        "chosen_of_best": chosen_share(outcomes),
        "memory_off": max(off),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(CUTS), default=list(CUTS))
    parser.add_argument("--quick", action="store_true", help="three cuts in two stages, one method, slow links")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    outcomes = []
    for pipeline in pipelines(options.models, quick=options.quick):
        each = outcome(pipeline)
        outcomes.append(each)
        what = f"{pipeline.model} {pipeline.method} {list(pipeline.boundaries)} at {pipeline.gigabytes_per_s} GB/s"
        rates = f"predicted {each.predicted:8.0f} samples/s, measured {each.measured:8.0f}"
        print(f"{what:52}{rates}; {each.predicted_bytes / 1e6:.2f} and {each.measured_bytes / 1e6:.2f} MB", flush=True)
    found = summary_of(outcomes)
    print(f"correlation {found['correlation']:.3f} (at least {CORRELATION})")
    print(f"the chosen cut has {found['chosen_of_best']:.1%} of the best one's rate (at least {1 - OF_BEST:.0%})")
    print(f"memory is off by {found['memory_off']:.1%} at most (at most {MEMORY:.0%})")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {usable_cores()} cores",
        **found,
        "pipelines": [asdict(each) for each in outcomes],
    }
    options.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
