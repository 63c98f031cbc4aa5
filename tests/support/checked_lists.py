"""The lists of a schedule, as a run makes them."""

from pipetrain.engine.program.recomputation import RecomputeSegments, with_recomputation
from pipetrain.engine.program.validation import validate
from pipetrain.engine.schedules import Kind, ListSchedule, Operation


def checked_lists(
    schedule: ListSchedule,
    num_stages: int,
    num_microbatches: int,
    minibatches: int,
    segments: RecomputeSegments | None = None,
) -> list[list[Operation]]:
    """Every worker's list under `schedule`, validated without W; with recomputation where there are segments.

    Raises:
        ScheduleError: see `validate`.
    """
    replicas = schedule.replicas(num_stages)
    lists = [
        schedule.of_worker(worker, num_stages, num_microbatches, minibatches) for worker in range(replicas.num_workers)
    ]
    if segments is not None:
        lists = [with_recomputation(each, segments.lead(replicas.stage_of(w))) for w, each in enumerate(lists)]
    joined = [[op for op in each if op.kind is not Kind.WEIGHT_GRADIENT] for each in lists]
    validate(joined, num_microbatches, minibatches, segments, replicas)
    return lists
