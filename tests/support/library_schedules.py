"""Schedules of torch.distributed.pipelining, made without processes or layers, for their lists and conditions."""

from torch import nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from pipetrain.engine.schedules import Placement


class StageAlone:
    """As much of the library's stage as its schedules look at when they are made."""

    def __init__(self, index: int, num_stages: int, num_processes: int) -> None:
        self.stage_index, self.num_stages = index, num_stages
        self.group_size, self.group_rank = num_processes, 0
        self.is_first, self.is_last = index == 0, index == num_stages - 1
        self.submod = nn.Identity()
        self.stage_index_to_group_rank: dict[int, int] = {}


def library_schedule(name: str, placement: Placement, N: int) -> PipelineScheduleMulti:
    """The library's schedule of this name, as process 0 makes it.

    Raises:
        ValueError: the library refuses these stages or microbatches.
    """
    processes = placement.num_processes
    D = sum(map(len, placement.stages_of))
    stages = [StageAlone(r, D, processes) for r in placement.stages_of[0]]
    return get_schedule_class(name)(stages, N, loss_fn=lambda *_: None)
