"""The weights that the operation lists of a method read."""

from collections.abc import Mapping, Sequence

from papers.staleness import rules_of
from pipetrain.engine.program.planned_operations import PlannedOperation
from pipetrain.engine.program.weight_reads import WeightRead
from pipetrain.engine.schedules.operation import Kind


def behind_newest(method: str, num_stages: int, num_microbatches: int) -> int:
    """The most updates by which a pass of any stage reads older weights than the newest that the stage has."""
    most = 0
    for stage in range(num_stages):
        newest = 0
        for planned in _planned(method, num_stages, num_microbatches, stage):
            if planned.operation.kind is Kind.UPDATE:
                newest += 1
            else:
                most = max(most, newest - planned.read.version)
    return most


def planned_reads(method: str, num_stages: int, num_microbatches: int, stage: int) -> Mapping[int, list[WeightRead]]:
    """Minibatch -> the reads of its passes on a stage."""
    reads: dict[int, list[WeightRead]] = {}
    for planned in _planned(method, num_stages, num_microbatches, stage):
        if planned.operation.kind is not Kind.UPDATE:
            reads.setdefault(planned.operation.minibatch, []).append(planned.read)
    return reads


def _planned(method: str, num_stages: int, num_microbatches: int, stage: int) -> Sequence[PlannedOperation]:
    rules = rules_of(method, num_stages, num_microbatches)
    return rules.planned(stage, 2 * rules.steady + 2)
