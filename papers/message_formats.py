"""Runs with formats of messages: what each costs under each method, whose weights are more or less stale."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from papers.kept_runs import RUNS, Row, ended_runs
from papers.lines import LOSS, STAGES, Line, depths_of
from papers.results import made_by
from papers.targets import FULL, SMALL, ReproductionTarget
from pipetrain.reporting.seed_statistics import Interval, Values

NAME = "messages"
SYNCHRONOUS, PLAIN = "gpipe", "plain"
METHODS = {
    ("adamw", SYNCHRONOUS): SYNCHRONOUS,
    ("adamw", "naive_async"): "naive_async",
    ("adamw", "pipedream"): "pipedream",
    ("adamw", "pipedream_2bw"): "pipedream_2bw",
    ("adamw", "pipeoptim"): "pipeoptim",
    ("muon", "delayed"): "delayed, Muon",
}
"""(preset, method) -> name of its pipelines."""
FORMATS = (PLAIN, "bf16", "fp8", "int8", "int4", "topk")


@dataclass(frozen=True)
class Pipelines:
    """A method with an optimizer, under every format.

    Attributes:
        name: of it.
        lines: format -> its line.
        synchronous: GPipe with the same optimizer and plain messages; None if not measured.
        shares: format -> bytes of a step over those of plain messages.
    """

    name: str
    lines: Mapping[str, Line]
    synchronous: Line | None
    shares: Mapping[str, float]

    def cost(self, form: str, stages: int, over: str = PLAIN) -> Interval | None:
        """Final losses with a format over those with another, paired by seed; None if not measured."""
        if form not in self.lines or over not in self.lines:
            return None
        return self.lines[form].to_loss(stages, self.lines[over].losses.get(stages, {}))

    def costs(self, form: str, stages: int) -> Values:
        """The same ratio to plain messages by seed, where those did not diverge."""
        ours, plain = (self.lines[each].losses.get(stages, {}) if each in self.lines else {} for each in (form, PLAIN))
        return {seed: ours[seed] / plain[seed] for seed in ours.keys() & plain.keys() if math.isfinite(plain[seed])}

    def to_synchronous(self, column: str, form: str, stages: int) -> Interval | None:
        """Final losses, or steps to a loss, over those of the synchronous run in as many stages."""
        line, other = self.lines.get(form), self.synchronous
        over = other.measured[column].get(stages) if other else None
        if not line or not over:
            return None
        return line.to_loss(stages, over) if column == LOSS else line.slowdown(column, stages, over)


class Measured(NamedTuple):
    """What is stored.

    Attributes:
        scale: of the runs.
        every: the methods, in the order of `METHODS`.
        step_bytes: stages -> bytes of a step with plain messages.
        runs: number of runs of the table.
        activations: the methods of the runs that test the papers' claims, where activations alone have a format.
    """

    scale: str
    every: Sequence[Pipelines]
    step_bytes: Mapping[int, float]
    runs: int
    activations: Sequence[Pipelines]

    @property
    def depths(self) -> list[int]:
        """The numbers of stages, ascending."""
        return depths_of([line for each in self.every for line in each.lines.values()])


def measured(results: Path) -> Measured:
    """What is stored of the full scale, or else of the small one."""
    for scale in (FULL, SMALL):
        rows = {preset: _rows(results, preset, scale) for preset in ("adamw", "muon", "activations")}
        if any(rows.values()):
            every = [_pipelines(rows[preset], method, name) for (preset, method), name in METHODS.items()]
            claims = dict.fromkeys(row["method"] for row in rows["activations"])
            table = [*rows["adamw"], *rows["muon"]]
            sent = {int(row[STAGES]): _plain_bytes(row) for row in table if row.get("message_share")}
            activations = [_pipelines(rows["activations"], method, method) for method in claims]
            return Measured(scale, [each for each in every if each.lines], sent, len(table), activations)
    return Measured(SMALL, [], {}, 0, [])


def _rows(results: Path, preset: str, scale: str) -> list[Row]:
    target = ReproductionTarget(f"{NAME}/{preset}", scale)
    kept = target.results(results)
    return ended_runs([kept / RUNS]) if made_by(target.words(Path("DIR")), kept) else []


def _pipelines(rows: Sequence[Row], method: str, name: str) -> Pipelines:
    found: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row["method"]][_format_of(row)].append(row)
    lines = {method: {form: Line.of(form, own) for form, own in each.items()} for method, each in found.items()}
    shares = {
        form: statistics.fmean(sent)
        for form, own in found[method].items()
        if (sent := [float(row["message_share"]) for row in own if row.get("message_share")])
    }
    return Pipelines(name, lines.get(method, {}), lines.get(SYNCHRONOUS, {}).get(PLAIN), shares)


def _format_of(row: Row) -> str:
    """The format of a run's activations, with the bits if a format of integers does not have its usual number."""
    form, bits = row.get("messages.activations.name") or PLAIN, row.get("messages.activations.bits")
    return f"{form} bits={bits}" if bits == "2" else form


def _plain_bytes(row: Row) -> float:
    return float(row["message_bytes"]) / float(row["message_share"])
