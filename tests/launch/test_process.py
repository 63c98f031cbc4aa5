"""Which stages a worker process has."""

import torch

from pipetrain.executors.messages.transport import Transport
from pipetrain.launch.process import ProcessEnvironment
from pipetrain.schedules import Placement


def test_process_with_the_last_stage_records_the_run():
    cpu, placement = Transport(torch.device("cpu")), Placement.v(4)
    processes = [ProcessEnvironment(r, "start", cpu, placement) for r in range(2)]
    assert [process.stages for process in processes] == [(0, 3), (1, 2)]
    assert [process.has_last_stage for process in processes] == [True, False]
