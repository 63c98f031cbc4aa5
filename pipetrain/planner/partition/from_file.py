"""The plan that `pipetrain plan` wrote, as the rule that cuts the model of a run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from pipetrain.errors import ConfigError
from pipetrain.models.chain import LayerChain
from pipetrain.planner.partition.rules import Pairs, PartitionRule, check_glued
from pipetrain.planner.pipeline_plan import PipelinePlan
from pipetrain.planner.profile.estimate import LayerCost, WeightPasses


@dataclass(frozen=True)
class PartitionFromPlan(PartitionRule):
    """The stages of a plan.json.

    Attributes:
        path: of the file.
    """

    path: str
    name: ClassVar[str] = "file"

    @override
    def cuts(self, chain: LayerChain, costs: Sequence[LayerCost], passes: WeightPasses, glued: Pairs) -> list[int]:
        """The first layer of every stage but the first.

        Raises:
            ConfigError: the file cannot be read, or is a plan for another model.
        """
        plan = self.plan
        check_model(plan, chain.labels, self.where)
        cuts = [stage.layers[0] for stage in plan.stages[1:]]
        check_glued("path", self.path, cuts, chain, glued)
        return cuts

    @cached_property
    def plan(self) -> PipelinePlan:
        """The plan in the file.

        Raises:
            ConfigError: there is no such file, or it holds none.
        """
        return read_plan(Path(self.path))

    @property
    def replicas(self) -> tuple[int, ...]:
        """Planned number of processes of each stage."""
        return tuple(stage.replicas for stage in self.plan.stages)

    @property
    def where(self) -> str:
        """Name of the plan in messages."""
        return f"partition.path={self.path}"


def read_plan(path: Path) -> PipelinePlan:
    """The plan in a file of `pipetrain plan`.

    Raises:
        ConfigError: there is no such file, or it holds none.
    """
    where = f"partition.path={path}"
    try:
        return PipelinePlan.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}; `pipetrain plan` writes one") from None
    except ValueError as error:
        raise ConfigError(f"{where}: no JSON: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def check_model(plan: PipelinePlan, labels: Sequence[str], where: str) -> None:
    """Checks that the plan is one of a chain of these layers.

    Raises:
        ConfigError: it is for another model.
    """
    if len(plan.labels) != len(labels):
        raise ConfigError(
            f"{where}: a plan for another model, of {len(plan.labels)} layers; this one has {len(labels)}"
        )
    for i, (planned, label) in enumerate(zip(plan.labels, labels, strict=True)):
        if planned != label:
            raise ConfigError(f"{where}: a plan for another model; its layer {i} is {planned}, this one's {label}")
    if [layer for stage in plan.stages for layer in stage.layers] != list(range(len(labels))):
        raise ConfigError(f"{where}: its stages are not consecutive layers, from the first to the last")
