"""The time of a planned pipeline by a play of its operation lists, for devices that share cores."""

from pipetrain.errors import ConfigError
from pipetrain.planner.cut_profile import CutProfile
from pipetrain.planner.memory import MemoryModel, MemoryRules
from pipetrain.planner.prediction import PipelineProgram, predicted
from pipetrain.program.recomputation import RecomputeSegments, steady_with_recomputation
from pipetrain.schedules import ListSchedule
from pipetrain.schedules.replicas import Replicas
from pipetrain.schedules.round_robin import RoundRobin


def played_s(cut: CutProfile, memory: MemoryModel, *, overlapped: bool) -> float | None:
    """Seconds of a minibatch in the slowest phase; None where a schedule has no lists for such a pipeline.

    As everywhere in plans, updates and latencies take no time.

    Args:
        cut: the stages.
        memory: has the schedules of the phases.
        overlapped: whether replicas average their gradients while they compute.

    Raises:
        ConfigError: devices share cores, and have none.
    """
    programs = [_program(cut, rules, overlapped=overlapped) for rules in memory.phases]
    unknown = [None] * len(cut.stages)
    played = [predicted(cut, each, unknown, 0.0).time_per_minibatch_s for each in programs if each is not None]
    return max(played) if len(played) == len(programs) else None


def _program(cut: CutProfile, rules: MemoryRules, *, overlapped: bool) -> PipelineProgram | None:
    depth, N, schedule = len(cut.stages), rules.microbatches, rules.schedule
    if not isinstance(schedule, ListSchedule):
        return None
    listed = RoundRobin(schedule, Replicas(cut.replicas)) if max(cut.replicas) > 1 else schedule
    try:
        listed.check(depth, N)
    except ConfigError:
        return None
    cycles = [listed.steady_cycle(r, depth, N) for r in range(depth)]
    segments = RecomputeSegments.of_single_stages(depth) if rules.recompute else None
    if segments is not None:
        cycles = [steady_with_recomputation(cycle, lead=0) for cycle in cycles]
    return PipelineProgram(cycles, N, [0.0] * depth, segments, overlapped)
