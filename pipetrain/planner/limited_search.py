"""The search for replicas on devices of one level whose memory is limited."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pipetrain.planner.bottleneck import EQUAL
from pipetrain.planner.cut_states import CutStates
from pipetrain.planner.depth_search import DepthSearch
from pipetrain.planner.found_stage import FoundStage, preference
from pipetrain.planner.memory import MemoryModel
from pipetrain.planner.row import even_rows
from pipetrain.planner.row_search import RowSearch
from pipetrain.planner.search import Search
from pipetrain.planner.stage_costs import CostModel
from pipetrain.planner.topology import Topology


@dataclass(frozen=True)
class LimitedSearch:
    """The best pipeline on all devices of one level, with as many replicas of each stage as are best.

    Where all stages have as many replicas, fewer microbatches may be in flight than among unlike ones: those pipelines
    are searched for by themselves. In the others it is the devices behind a stage that say what it keeps, or where
    the pipeline drains, the stages behind it.

    Attributes:
        states: where the model may be cut.
        topology: the devices.
        costs: of replicas and links.
        memory: what a stage keeps.
    """

    states: CutStates
    topology: Topology
    costs: CostModel
    memory: MemoryModel

    def time_s(self) -> float:
        """Seconds for each minibatch; infinite where no pipeline fits."""
        return min(search.time_s() for search in self._searches)

    def stages(self) -> Iterator[FoundStage]:
        """The stages of the best pipeline."""
        most = self.time_s() * (1 + EQUAL)
        best = (list(search.stages()) for search in self._searches if search.time_s() <= most)
        yield from min(best, key=preference)

    @cached_property
    def _searches(self) -> list[Search | DepthSearch | RowSearch]:
        of_any = DepthSearch if self.memory.drains else Search
        rows = even_rows(self.topology, len(self.states) - 1)
        return [
            of_any(self.states, self.topology, self.costs, self.memory),
            *(RowSearch(self.states, row, self.costs, self.memory) for row in rows),
        ]
