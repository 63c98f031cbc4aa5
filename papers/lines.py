"""Runs against the depth of a pipeline: final losses, steps to a loss and learning rates, a line for each method."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from papers.kept_runs import Row
from papers.results import STEPS_TO_LOSS
from pipetrain.reporting.seed_statistics import Interval, Values, ratio
from pipetrain.reporting.steps_to_loss import slowdown

LOSS = "loss"
STAGES = "partition.stages"


@dataclass(frozen=True)
class Line:
    """A method, with an optimizer, at several depths.

    Attributes:
        name: of it.
        measured: `loss` or a column of `STEPS_TO_LOSS` -> depth -> final loss of the evaluation, or steps to the loss,
            by seed; infinite if a run diverged, or ended before.
        rates: depth -> learning rate.
        method: that it trains with.
    """

    name: str
    measured: Mapping[str, Mapping[int, Values]]
    rates: Mapping[int, float]
    method: str = ""

    @classmethod
    def of(cls, name: str, rows: Sequence[Row], depth: str = STAGES, method: str = "") -> Self:
        """The line of some runs.

        Args:
            name: of the line.
            rows: of `runs.csv`.
            depth: the column of the depth.
            method: that it trains with.
        """
        found: dict[str, dict[int, dict[str, float]]] = {column: {} for column in (LOSS, *STEPS_TO_LOSS)}
        for row in rows:
            for column, by_depth in found.items():
                # a run whose losses are finite may still end with an evaluation that overflows, which has no number
                value = row.get(column) if row["status"] == "completed" else None
                by_depth.setdefault(int(row[depth]), {})[row["seed"]] = float(value) if value else math.inf
        return cls(name, found, {int(row[depth]): float(row["optimizer.lr"]) for row in rows}, method)

    @property
    def depths(self) -> list[int]:
        """Those that were measured, ascending."""
        return sorted(self.measured[LOSS])

    @property
    def losses(self) -> Mapping[int, Values]:
        """Depth -> final losses by seed."""
        return self.measured[LOSS]

    def reaches(self, column: str) -> bool:
        """True if a run at depth 1 has steps to the loss of that column."""
        return any(map(math.isfinite, self.measured[column].get(1, {}).values()))

    def slowdown(self, column: str, depth: int, over: Values | None = None) -> Interval | None:
        """Steps at a depth over others; None if not measured, or if one of the others is infinite.

        Args:
            column: of `STEPS_TO_LOSS`.
            depth: of ours.
            over: the other steps by seed; None: those of this line at depth 1.
        """
        ours, theirs = self.measured[column].get(depth), over or self.measured[column].get(1)
        if not ours or not theirs or ours.keys() != theirs.keys() or not all(map(math.isfinite, theirs.values())):
            return None
        return slowdown(ours, theirs)

    def to_loss(self, depth: int, other: Values) -> Interval | None:
        """The ratio of the final losses to others, in pairs of equal seeds; None if they do not have the same seeds."""
        ours = self.losses.get(depth)
        return ratio(ours, other) if ours and ours.keys() == other.keys() else None

    def final_loss(self, depth: int) -> str:
        """Mean and standard deviation of the final losses."""
        losses = list(self.losses.get(depth, {}).values())
        if not losses or not all(map(math.isfinite, losses)):
            return "diverged" if losses else ""
        spread = f" ± {statistics.stdev(losses):.3f}" if len(losses) > 1 else ""
        return f"{statistics.fmean(losses):.3f}{spread}"


def depths_of(lines: Sequence[Line]) -> list[int]:
    """All depths of some lines, ascending."""
    return sorted({depth for line in lines for depth in line.depths})
