"""Staleness and weight versions of small runs of every method: the papers' tables next to measurements."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from papers.closed_forms import CLOSED, Position, utilization_of_gpipe
from pipetrain.data.loader import Loader
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline import build_pipeline
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.optim.optimizer_factory import OptimizerFactory
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.program.playback import play, unit_duration
from pipetrain.engine.stage.base import Training
from pipetrain.engine.stage.stage import Stage
from pipetrain.graph.conversion import chain_of
from pipetrain.runner.config.choices import group_overrides_of, section
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.phases import PhaseSettings
from pipetrain.runner.terminal.text_table import number_list, text_lines, text_table
from pipetrain.runner.tracking.files import write_whole
from pipetrain.runner.training.components.pipeline import build_pipeline_rules

_WIDTH = 8
"""Numbers of inputs, outputs and classes of every layer, so that all layers have as many weights."""
_TRAINING = Training(
    OptimizerFactory(lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9), rate=lambda _: 0.01),
    CrossEntropy(),
)
_CHANGED = {
    "pipedream_vertical_sync": ("pipedream", {"vertical_sync": True}, None),
    "pipedream_pipemare": ("pipedream", {}, "pipemare"),
    "pipedream_v": ("pipedream", {}, "1f1b_v"),
}
"""Row -> (method, settings changed, schedule if not its own)."""
_TABLE_1 = ("pipedream_pipemare", "gpipe", "pipemare")


@dataclass(frozen=True)
class StageMeasurement:
    """Measurements of one stage of one run; each pair is (value of the closed form, measured value).

    Attributes:
        method: its row in the tables.
        num_microbatches: N.
        stage: r.
        forward, backward: the distinct values of staleness.
        versions: largest number of sets of weights held at the same time.
        copies: peak bytes of these over the bytes of one set.
    """

    method: str
    num_microbatches: int
    stage: int
    forward: tuple[list[int], list[int]]
    backward: tuple[list[int], list[int]]
    versions: tuple[int, int]
    copies: float

    @property
    def agrees(self) -> bool:
        """True if every measurement equals its closed form."""
        return all(closed == measured for closed, measured in (self.forward, self.backward, self.versions))


def report(num_stages: int, num_microbatches: int, output: Path | None) -> bool:
    """Trains, prints the tables, and with `output` writes the rows as JSON; True if all measurements agree.

    Raises:
        ConfigError: a number is below 1.
    """
    for option, value in (("--stages", num_stages), ("--microbatches", num_microbatches)):
        if value < 1:
            raise ConfigError(f"{option} {value}: must be at least 1")
    torch.set_num_threads(1)
    rows = [stage for row in CLOSED for stage in _run(row, num_stages, num_microbatches)]
    print(f"D = {num_stages}, N = {num_microbatches}; closed form | measured in a run\n")
    print(*_stage_table(rows), sep="\n")
    print(*_table_ii(rows, num_stages), sep="\n")
    print("", *_table_1(rows, num_stages, num_microbatches), sep="\n")
    wrong = [row for row in rows if not row.agrees]
    differ = f"{len(wrong)} rows differ from their closed form"
    print(f"\n{differ if wrong else 'every measurement matches its closed form'}")
    if output is not None:
        write_whole(output, json.dumps([asdict(row) for row in rows], indent=2) + "\n")
        print(f"written to {output}")
    return not wrong


def rules_of(row: str, num_stages: int, num_microbatches: int) -> PipelineRules:
    """The schedule and method of a row of the tables."""
    name, changes, schedule = _CHANGED.get(row, (row, {}, None))
    # two versions are enough only where a minibatch fills the pipeline
    count = max(num_stages, num_microbatches) if name == "pipedream_2bw" else num_microbatches
    schedule = schedule or group_overrides_of("method", name)["schedule"]
    phase = PhaseSettings(
        Target.of("schedule", section("schedule", schedule)),
        Target.of("method", {**section("method", name), **changes}),
        {"schedule": schedule, "method": name},
    )
    return build_pipeline_rules(phase, num_stages, count, None)


def trained(rules: PipelineRules, layers_per_stage: int = 1) -> Sequence[Stage]:
    """The stages of a short run on random samples, in one process, with layers of equal size."""
    torch.manual_seed(0)
    num_stages = rules.num_stages
    chain = chain_of(nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(num_stages * layers_per_stage))))
    minibatches = 2 * rules.contexts[0].delay + 4
    size = 2 * rules.num_microbatches
    x, y = torch.randn(minibatches * size, _WIDTH), torch.randint(0, _WIDTH, (minibatches * size,))
    loader = Loader(TensorDataset(x, y), batch_size=size, microbatches=rules.num_microbatches, shuffle=False)
    bounds = [(r * layers_per_stage, (r + 1) * layers_per_stage) for r in range(num_stages)]
    pipeline = build_pipeline(chain, bounds, rules, _TRAINING)
    pipeline.train(loader, DrainInterval.whole(minibatches))
    return pipeline.stages


def weight_copies(stage: Stage) -> float:
    """Peak bytes of all sets of weights that a stage held, over the bytes of one set."""
    bytes_of_one = sum(parameter.nbytes for parameter in stage.module.parameters())
    return float(stage.report()["weight_bytes_peak"] / bytes_of_one)


def _run(row: str, num_stages: int, num_microbatches: int) -> Iterator[StageMeasurement]:
    rules = rules_of(row, num_stages, num_microbatches)
    for stage in trained(rules):
        measured, closed = stage.report(), CLOSED[row]
        at = Position(stage.index, num_stages, rules.num_microbatches)
        yield StageMeasurement(
            row,
            at.N,
            at.r,
            (closed.forward(at), measured["forward_staleness"]),
            (closed.backward(at), measured["backward_staleness"]),
            (closed.versions(at), measured["weight_versions_max"]),
            weight_copies(stage),
        )


def _stage_table(rows: Sequence[StageMeasurement]) -> list[str]:
    cells = [
        (
            row.method,
            str(row.num_microbatches),
            str(row.stage),
            *(f"{number_list(closed)} | {number_list(measured)}" for closed, measured in (row.forward, row.backward)),
            f"{row.versions[0]} | {row.versions[1]}",
            "" if row.agrees else "differs",
        )
        for row in rows
    ]
    return text_table(("method", "N", "stage", "staleness of F", "staleness of B", "versions", ""), cells, "<>>>>><")


def _table_ii(rows: Sequence[StageMeasurement], num_stages: int) -> Iterator[str]:
    yield "\nPipeOptim, table II: copies of a stage's weights, least and most over the stages"
    closed = {
        "pipedream": (1, num_stages),
        "pipedream_2bw": (2, 2),
        "spectrain": (2, 2),
        "pipeoptim": (1, min(2, num_stages)),
    }
    cells = []
    for name, (low, high) in closed.items():
        copies = [row.copies for row in rows if row.method == name]
        cells.append((f"  {name}", f"[{low}, {high}] | [{min(copies):g}, {max(copies):g}]"))
    yield from text_lines(cells, "<<")


def pipemare_table_1(num_stages: int, num_microbatches: int) -> list[str]:
    """PipeMare's table 1, closed form next to measurement, in lines."""
    rows = [stage for row in _TABLE_1 for stage in _run(row, num_stages, num_microbatches)]
    return list(_table_1(rows, num_stages, num_microbatches))


def _table_1(rows: Sequence[StageMeasurement], num_stages: int, num_microbatches: int) -> Iterator[str]:
    yield "PipeMare, table 1: largest delay of F and of B by stage; utilization; copies of all weights"
    for name in _TABLE_1:
        stages = [row for row in rows if row.method == name]
        forward = [(row.forward[0][-1], max(row.forward[1], default=0)) for row in stages]
        backward = [(row.backward[0][-1], max(row.backward[1], default=0)) for row in stages]
        busy = utilization_of_gpipe(num_stages, num_microbatches) if name == "gpipe" else 1.0
        label = "pipedream" if name == "pipedream_pipemare" else name
        measured = _busy(name, num_stages, num_microbatches)
        yield f"  {label:10} tau_fwd {_pair(forward)}   tau_bkd {_pair(backward)}"
        yield f"  {'':10} utilization {busy:.3f} | {measured:.3f}   copies {_copies(name, stages)}"


def _pair(values: Sequence[tuple[int, int]]) -> str:
    closed, measured = (" ".join(map(str, side)) for side in zip(*values, strict=True))
    return f"{closed} | {measured}"


def _copies(name: str, rows: Sequence[StageMeasurement]) -> str:
    """Copies of all weights, for stages of equal size: the paper's |w|·tau_fwd leaves out the newest version itself."""
    paper = sum(row.forward[0][-1] for row in rows) / len(rows) if name == "pipedream_pipemare" else 1.0
    extra = {"pipedream_pipemare": ", the newest included", "pipemare": ", with what a backward corrects with T2"}
    return f"{paper:.2f} | {sum(row.copies for row in rows) / len(rows):.2f}{extra.get(name, '')}"


def _busy(row: str, num_stages: int, num_microbatches: int) -> float:
    """The share of its time in which a stage computes, without warm-up and drain of the whole list."""
    rules = rules_of(row, num_stages, num_microbatches)
    few, many = (
        max(slices[-1].end for slices in play(rules.lists(minibatches), unit_duration)) for minibatches in (40, 80)
    )
    return 2 * num_microbatches * 40 / (many - few)
