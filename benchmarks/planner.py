"""Predicted against measured throughput and memory of pipelines on this machine (PipeDream § 5.5, fig. 15).

`make bench-planner`, or `python benchmarks/planner.py`. Every pipeline, a model cut at some places under a method over
links of some bandwidth, is predicted from the model's profile by `pipetrain plan`, then run for some steps by
`pipetrain run`, one thread in each process. Links are slowed by a hook of the runtime, which delays what is sent as a
network would. Profiles, predictions and runs take turns, some rounds of them, and of each pipeline the best round
counts: what else the machine does only ever slows things down. Wants a quiet machine.

Predictions are for processes that share the cores of this machine.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import product
from pathlib import Path

import numpy as np

from pipetrain.engine.processes import usable_cores
from pipetrain.runner.terminal.style import BLUE, GRAY, GREEN, ORANGE, figure

RESULT = Path(__file__).resolve().parents[1] / "results" / "bench" / "planner.json"
CORRELATION, OF_BEST, MEMORY = 0.95, 0.05, 0.10
"""What is asked of the predictions: the least correlation, and the largest shares by which they may be off."""
CUTS = {
    "lenet5": ([1], [2], [3], [1, 2], [2, 4]),
    "resnet20": ([5], [8], [12], [4, 9], [6, 12]),
    "alexnet_cifar": ([2], [4], [6], [2, 5], [3, 9]),
}
"""Model -> the first layers of all stages but the first, of pipelines in two and three processes."""
BATCH_SIZES = {"lenet5": 256, "resnet20": 32, "alexnet_cifar": 64}
PLACED_CUTS = {
    "lenet5": ([1, 2, 4], [1, 3, 5], [2, 3, 4]),
    "resnet20": ([4, 8, 12], [5, 9, 14], [3, 6, 15]),
    "alexnet_cifar": ([2, 4, 7], [3, 6, 9], [1, 5, 8]),
}
"""The same of four stages in two processes."""
WAYS = (
    ("pipedream", "1f1b", 1, 1.0),
    ("pipedream", "1f1b", 1, 0.02),
    ("gpipe", "gpipe", 4, 0.05),
    ("gpipe", "interleaved_1f1b", 4, 1.0),
    ("naive_async", "interleaved_1f1b_continuous", 2, 0.05),
    ("gpipe", "zb_v", 4, 1.0),
    ("naive_async", "1f1b_v", 2, 0.05),
)
"""Method, schedule, microbatches, and the bandwidth of the links in GB/s."""
PLACED = {schedule for _, schedule, *_ in WAYS[3:]}
"""Schedules that place two stages in each process."""
WEIGHT_BYTES = 4
BESIDE = 2
"""Tensors of each weight's size that a run does not measure: gradients, and the momentum of these models' SGD."""
STEPS, WINDOW = 28, 4
"""Of a run, and how many steps are timed together."""
COLORS = dict(zip(CUTS, (BLUE, ORANGE, GREEN), strict=True))


@dataclass(frozen=True)
class Setting:
    """What pipelines that differ in their cut alone have in common."""

    model: str
    method: str
    schedule: str
    microbatches: int
    gigabytes_per_s: float

    def measured_words(self) -> list[str]:
        """What a profile of it depends on."""
        return [
            f"model={self.model}",
            f"train.microbatches={self.microbatches}",
            f"train.batch_size={BATCH_SIZES[self.model]}",
            f"method={self.method}",
            f"schedule={self.schedule}",
            "threads=1",
            "device=cpu",
        ]

    def words(self, *cuts: Sequence[int]) -> list[str]:
        """The overrides of `pipetrain run`, or those of the predictions of several."""
        return [
            *self.measured_words(),
            "partition=explicit",
            f"partition.boundaries={','.join(str(list(cut)) for cut in cuts)}",
            f"train.max_steps={STEPS}",
            "eval.every_epochs=0",
            f"topology.gigabytes_per_s=[{self.gigabytes_per_s}]",
            f"topology.cores={usable_cores()}",
        ]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline to predict and run; `process_of` has the process of each stage."""

    setting: Setting
    boundaries: tuple[int, ...]
    process_of: tuple[int, ...]

    @property
    def processes(self) -> int:
        return len(set(self.process_of))


@dataclass(frozen=True)
class Seen:
    """Samples/s, and the bytes of the process that holds most."""

    rate: float
    memory_bytes: int


@dataclass(frozen=True)
class Outcome:
    """A pipeline as it was predicted and as it was measured."""

    pipeline: Pipeline
    predicted: Seen
    measured: Seen


def settings_of(models: Sequence[str], schedules: Sequence[str]) -> list[Setting]:
    return [Setting(model, *way) for model in models for way in WAYS if way[1] in schedules]


def outcomes(settings: Sequence[Setting], rounds: int, folder: Path) -> Iterator[Outcome]:
    predicted: dict[Pipeline, list[Seen]] = defaultdict(list)
    measured: dict[Pipeline, list[Seen]] = defaultdict(list)
    for number, setting in product(range(rounds), settings):
        profile = profiled(setting, folder / f"{setting.model}-{setting.schedule}-{number}.json")
        with tempfile.TemporaryDirectory(dir=folder) as place:
            predictions = dict(predicted_by(setting, profile, Path(place)))
        for pipeline, seen in predictions.items():
            predicted[pipeline].append(seen)
            with tempfile.TemporaryDirectory(dir=folder) as place:
                measured[pipeline].append(measurement(pipeline, profile, Path(place)))
            print(line(pipeline, seen, measured[pipeline][-1]), flush=True)
    for pipeline in predicted:
        seen_best = (max(each[pipeline], key=lambda one: one.rate) for each in (predicted, measured))
        yield Outcome(pipeline, *seen_best)


def profiled(setting: Setting, path: Path) -> Path:
    """The profile of a model in one round."""
    if not path.exists():
        command("profile", *setting.measured_words(), "-o", str(path))
    return path


def predicted_by(setting: Setting, profile: Path, folder: Path) -> Iterator[tuple[Pipeline, Seen]]:
    cuts = (PLACED_CUTS if setting.schedule in PLACED else CUTS)[setting.model]
    command("plan", *setting.words(*cuts), f"profile={profile}", "-o", str(folder), "--force")
    for cut, case in zip(cuts, json.loads((folder / "plan.json").read_text())["pipelines"], strict=True):
        memory_bytes = max(stage["memory_bytes"] for stage in case["stages"])
        process_of = tuple(stage["process"] for stage in case["stages"])
        yield Pipeline(setting, tuple(cut), process_of), Seen(case["samples_per_s"], memory_bytes)


def measurement(pipeline: Pipeline, profile: Path, folder: Path) -> Seen:
    """Measurements of a run, with the memory that it keeps in addition."""
    words = pipeline.setting.words(pipeline.boundaries)
    command("run", *words, f"hydra.run.dir={folder}", gigabytes=pipeline.setting.gigabytes_per_s)
    summary = json.loads((folder / "summary.json").read_text())
    kept: dict[int, int] = defaultdict(int)
    for process, stage in zip(pipeline.process_of, summary["per_stage"], strict=True):
        kept[process] += stage["weight_bytes_peak"] + stage["activation_bytes_peak"]
        kept[process] += BESIDE * WEIGHT_BYTES * stage["parameters"]
    data = json.loads(profile.read_text())
    kept[pipeline.process_of[0]] += data["input_bytes"]
    kept[pipeline.process_of[-1]] += data["target_bytes"]
    return Seen(rate_of(folder / "metrics.jsonl"), max(kept.values()))


def rate_of(metrics: Path) -> float:
    """The median samples/s over windows of some steps, the first and the last of the run left out."""
    records = [json.loads(record) for record in metrics.read_text().splitlines()]
    steps = [each for each in records if each["kind"] == "interval"][WINDOW:-1]
    windows = (steps[i : i + WINDOW] for i in range(0, len(steps) - WINDOW + 1, WINDOW))
    seconds = statistics.median(sum(step["train_s"] for step in window) for window in windows)
    return float(WINDOW * steps[0]["samples"] / seconds)


def command(name: str, *words: str, gigabytes: float | None = None) -> None:
    slowed = {} if gigabytes is None else {"PIPETRAIN_LINK_GIGABYTES_PER_S": str(gigabytes)}
    arguments = [sys.executable, "-m", "pipetrain", name, *words]
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **slowed})


def line(pipeline: Pipeline, predicted: Seen, measured: Seen) -> str:
    of = pipeline.setting
    what = f"{of.model} {of.schedule} {list(pipeline.boundaries)} at {of.gigabytes_per_s} GB/s"
    rates = f"predicted {predicted.rate:8.0f} samples/s, measured {measured.rate:8.0f}"
    return f"{what:60}{rates}; {predicted.memory_bytes / 1e6:.2f} and {measured.memory_bytes / 1e6:.2f} MB"


def chosen_shares(every: Sequence[Outcome]) -> list[float]:
    """The chosen pipeline's share of the best one's rate, in each group of those that differ in their cut alone."""
    groups: dict[tuple[Setting, int], list[Outcome]] = defaultdict(list)
    for each in every:
        groups[each.pipeline.setting, each.pipeline.processes].append(each)
    return [
        max(group, key=lambda each: each.predicted.rate).measured.rate / max(each.measured.rate for each in group)
        for group in groups.values()
    ]


def summary_of(every: Sequence[Outcome]) -> dict[str, float]:
    predicted = np.array([each.predicted.rate for each in every])
    measured = np.array([each.measured.rate for each in every])
    shares = chosen_shares(every)
    off = [abs(each.predicted.memory_bytes / each.measured.memory_bytes - 1) for each in every]
    within = {
        f"correlation_{model}": correlation([each for each in every if each.pipeline.setting.model == model])
        for model in sorted({each.pipeline.setting.model for each in every})
    }
    return {
        "correlation": correlation(every),
        **within,
        "rate_off_median": float(np.median(np.abs(predicted / measured - 1))),
        "chosen_of_best": min(shares),
        "chosen_within": sum(share >= 1 - OF_BEST for share in shares),
        "groups": len(shares),
        "memory_off": max(off),
    }


def correlation(every: Sequence[Outcome]) -> float:
    """Of samples/s, as in PipeDream's figure 15."""
    return float(np.corrcoef([each.predicted.rate for each in every], [each.measured.rate for each in every])[0, 1])


def draw(path: Path, every: Sequence[Outcome]) -> None:
    """Predicted against measured, as PipeDream's figure 15."""
    with figure(path, (4.6, 4.6), height=4.6) as (rates, memory):
        for model in {each.pipeline.setting.model: None for each in every}:
            of_model = [each for each in every if each.pipeline.setting.model == model]
            seen = [(each.predicted.rate, each.measured.rate) for each in of_model]
            held = [(each.predicted.memory_bytes / 1e6, each.measured.memory_bytes / 1e6) for each in of_model]
            for panel, points in ((rates, seen), (memory, held)):
                x, y = zip(*points, strict=True)
                panel.scatter(x, y, s=18, color=COLORS[model], label=model)
        for panel, what in ((rates, "samples/s"), (memory, "MB, fullest process")):
            panel.set(xscale="log", yscale="log", xlabel=f"{what}, predicted", ylabel=f"{what}, measured")
            least = min(*panel.get_xlim(), *panel.get_ylim())
            panel.axline((least, least), (2 * least, 2 * least), color=GRAY, linewidth=0.8)
            panel.legend(frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(CUTS), default=list(CUTS))
    schedules = list(dict.fromkeys(schedule for _, schedule, *_ in WAYS))
    one_each = [schedule for schedule in schedules if schedule not in PLACED]
    parser.add_argument("--schedules", nargs="*", choices=schedules, default=one_each)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(options.models, options.schedules)
        every = list(outcomes(settings, options.rounds, Path(folder)))
    found = summary_of(every)
    print(f"correlation {found['correlation']:.3f} (at least {CORRELATION})")
    print(
        f"the chosen cut is within {OF_BEST:.0%} of the best one in {found['chosen_within']} of {found['groups']} "
        f"groups, and has {found['chosen_of_best']:.1%} of its rate at worst"
    )
    print(f"memory is off by {found['memory_off']:.1%} at most (at most {MEMORY:.0%})")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {usable_cores()} cores",
        **found,
        "pipelines": [asdict(each) for each in every],
    }
    options.output.write_text(json.dumps(content, indent=1) + "\n")
    draw(options.output.with_suffix(".png"), every)


if __name__ == "__main__":
    main()
