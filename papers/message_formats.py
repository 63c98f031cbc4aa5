"""Runs with formats of messages: what each costs under each method, whose weights are more or less stale."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from papers.kept_runs import Row
from papers.lines import LOSS, STAGES, Line, depths_of
from papers.results import rows_made_by
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
    """The measurements of a scale.

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

    @property
    def synchronous(self) -> Pipelines | None:
        """GPipe with AdamW, whose costs those of other methods are compared with."""
        return next((each for each in self.every if each.name == SYNCHRONOUS), None)

    def share(self, form: str) -> float | None:
        """Bytes of a format over those of plain messages, as a mean over the methods; None if not measured."""
        shares = [each.shares[form] for each in self.every if form in each.shares]
        return statistics.fmean(shares) if shares else None


def measured(results: Path) -> Measured:
    """The stored measurements: of the full scale if there are any, else of the small one."""
    for scale in (FULL, SMALL):
        rows = {preset: _rows(results, preset, scale) for preset in ("adamw", "muon", "activations")}
        if any(rows.values()):
            runs = {preset: _by_format(each) for preset, each in rows.items()}
            every = [_pipelines(runs[preset], method, name) for (preset, method), name in METHODS.items()]
            activations = [_pipelines(runs["activations"], method, method) for method in runs["activations"]]
            table = [*rows["adamw"], *rows["muon"]]
            sent = {int(row[STAGES]): _plain_bytes(row) for row in table if row.get("message_share")}
            return Measured(scale, [each for each in every if each.lines], sent, len(table), activations)
    return Measured(SMALL, [], {}, 0, [])


def _rows(results: Path, preset: str, scale: str) -> list[Row]:
    target = ReproductionTarget(f"{NAME}/{preset}", scale)
    return rows_made_by(target.words(Path("DIR")), target.results(results))


_Runs = Mapping[str, Mapping[str, Sequence[Row]]]
"""Method -> format -> runs of a preset."""


def _by_format(rows: Sequence[Row]) -> _Runs:
    found: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row["method"]][_format_of(row)].append(row)
    return found


def _pipelines(runs: _Runs, method: str, name: str) -> Pipelines:
    own, plain = runs.get(method, {}), runs.get(SYNCHRONOUS, {}).get(PLAIN)
    sent = {
        form: [float(row["message_share"]) for row in each if row.get("message_share")] for form, each in own.items()
    }
    return Pipelines(
        name,
        lines={form: Line.of(form, each) for form, each in own.items()},
        synchronous=Line.of(PLAIN, plain) if plain else None,
        shares={form: statistics.fmean(each) for form, each in sent.items() if each},
    )


def _format_of(row: Row) -> str:
    """The format of a run's activations, with the bits if a format of integers does not have its usual number."""
    form, bits = row.get("messages.activations.name") or PLAIN, row.get("messages.activations.bits")
    return f"{form} bits={bits}" if bits == "2" else form


def _plain_bytes(row: Row) -> float:
    return float(row["message_bytes"]) / float(row["message_share"])
