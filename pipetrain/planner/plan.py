"""The plan of a run: which layers form which stage, by which rule, and what each stage is estimated to cost."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from pipetrain.models.chain import LayerChain
from pipetrain.planner.estimate import LayerCost, layer_costs
from pipetrain.planner.partition_rules import PartitionRule

_LABEL_WIDTH = 20
ROWS_SHOWN, ENDS_SHOWN = 16, 4
"""Stages up to which a table for the terminal shows all, and how many of either end it shows of more."""


@dataclass(frozen=True)
class StagePlan:
    """One stage: layers `first` to `last`, exclusive, and the estimate for one microbatch of the example's size."""

    first: int
    last: int
    labels: list[str]
    parameters: int
    estimated_seconds: float  # one forward and backward on one CPU core: compare stages, do not predict a run
    estimated_bytes: int  # weights, gradients and activations of one version and one microbatch


@dataclass(frozen=True)
class Plan:
    """The stages of a run, and the name of the rule that made them."""

    rule: str
    stages: list[StagePlan]

    @property
    def stale_weight_share(self) -> float:
        """The parameters of all stages but the last, as a share of all: those that an asynchronous schedule delays."""
        counts = [stage.parameters for stage in self.stages]
        return sum(counts[:-1]) / max(1, sum(counts))

    def to_json(self) -> dict[str, Any]:
        """Return the content of plan.json."""
        return {
            "rule": self.rule,
            "parameters": sum(stage.parameters for stage in self.stages),
            "stale_weight_share": self.stale_weight_share,
            "stages": [{"stage": r, **asdict(stage)} for r, stage in enumerate(self.stages)],
        }

    def table(self, devices: Sequence[str]) -> str:
        """Return the table that a run prints: a line for each stage, at most 100 columns, without a final newline."""
        total = sum(stage.estimated_seconds for stage in self.stages) or 1.0
        rows = [("stage", "layers", "", "parameters", "time", "device")]
        count = len(self.stages)
        for r, (stage, device) in enumerate(zip(self.stages, devices, strict=True)):
            if elided(r, count):
                if r == ENDS_SHOWN:
                    rows.append(("...", f"{count - 2 * ENDS_SHOWN} more stages, in plan.json", "", "", "", ""))
                continue
            share = f"{100 * stage.estimated_seconds / total:.1f} %"
            rows.append((str(r), _range(stage), _span(stage), f"{stage.parameters:,}", share, device))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        aligned = (str.rjust, str.ljust, str.ljust, str.rjust, str.rjust, str.ljust)
        return "\n".join(
            "  ".join(place(cell, width) for place, cell, width in zip(aligned, row, widths, strict=True)).rstrip()
            for row in rows
        )


def make_plan(chain: LayerChain, rule: PartitionRule, example: Sequence[Tensor]) -> Plan:
    """Cut `chain` by `rule`; `example` is the input tensors of one microbatch, of which only the shapes matter.

    Raises:
        ConfigError: the rule cannot hold for this model.
    """
    costs = layer_costs(chain, example)
    bounds = itertools.pairwise([0, *rule.cuts(chain, costs), len(chain)])
    return Plan(rule.name, [_stage(chain, costs, first, last) for first, last in bounds])


def _stage(chain: LayerChain, costs: list[LayerCost], first: int, last: int) -> StagePlan:
    # A tied weight counts once, so the layers' own counts do not simply add up.
    weights = {id(weight): weight for layer in chain.layers[first:last] for weight in layer.parameters()}
    return StagePlan(
        first=first,
        last=last,
        labels=chain.labels[first:last],
        parameters=sum(weight.numel() for weight in weights.values()),
        estimated_seconds=sum(cost.cost for cost in costs[first:last]),
        estimated_bytes=sum(cost.memory_bytes for cost in costs[first:last]),
    )


def elided(r: int, num_stages: int) -> bool:
    """Whether a table for the terminal leaves stage r out."""
    return num_stages > ROWS_SHOWN and ENDS_SHOWN <= r < num_stages - ENDS_SHOWN


def _range(stage: StagePlan) -> str:
    if stage.first == stage.last:
        return "-"
    return str(stage.first) if stage.last == stage.first + 1 else f"{stage.first}-{stage.last - 1}"


def _span(stage: StagePlan) -> str:
    names = [label if len(label) <= _LABEL_WIDTH else "..." + label[3 - _LABEL_WIDTH :] for label in stage.labels]
    if not names:
        return ""
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
