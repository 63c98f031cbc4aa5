"""The plan that `pipetrain plan` wrote, as the rule that cuts the model of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from pipetrain.data.files import strict_json
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.models.chain import LayerChain
from pipetrain.graph.layer_costs import LayerCost, WeightPasses
from pipetrain.planning.pipeline_plan import PipelinePlan
from pipetrain.runner.partition.rules import Pairs, PartitionRule, check_glued


@dataclass(frozen=True)
class PartitionFromPlan(PartitionRule):
    """The stages of a plan.json."""

    path: str
    name: ClassVar[str] = "file"

    @override
    def cuts(self, chain: LayerChain, costs: Sequence[LayerCost], passes: WeightPasses, glued: Pairs) -> list[int]:
        self._check_model(chain.labels)
        cuts = [stage.layers[0] for stage in self.plan.stages[1:]]
        check_glued("path", self.path, cuts, chain, glued)
        return cuts

    @cached_property
    def plan(self) -> PipelinePlan:
        """The plan in the file.

        Raises:
            ConfigError: there is no such file, or it holds none.
        """
        try:
            return PipelinePlan.from_json(strict_json.read(Path(self.path)))
        except OSError as error:
            raise ConfigError(f"{self.where}: cannot be read: {error.strerror}; `pipetrain plan` writes one") from None
        except ValueError as error:
            raise ConfigError(f"{self.where}: no JSON: {error}") from None
        except ConfigError as error:
            raise ConfigError(f"{self.where}: {error}") from None

    @property
    def replicas(self) -> tuple[int, ...]:
        """Planned number of processes of each stage."""
        return tuple(stage.replicas for stage in self.plan.stages)

    @property
    def where(self) -> str:
        """Name of the plan in messages."""
        return f"partition.path={self.path}"

    def _check_model(self, labels: Sequence[str]) -> None:
        where, planned = f"{self.where}: a plan for another model", self.plan.labels
        if len(planned) != len(labels):
            raise ConfigError(f"{where}, of {len(planned)} layers; this one has {len(labels)}")
        for i, (theirs, ours) in enumerate(zip(planned, labels, strict=True)):
            if theirs != ours:
                raise ConfigError(f"{where}; its layer {i} is {theirs}, this one's {ours}")
        if [layer for stage in self.plan.stages for layer in stage.layers] != list(range(len(labels))):
            raise ConfigError(f"{self.where}: its stages are not consecutive layers, from the first to the last")
