"""Where a worker process computes, and which stages are its own."""

import pytest
import torch

from pipetrain.launch.process import ProcessEnvironment, device_at
from pipetrain.schedules import Placement


@pytest.mark.parametrize(("local_rank", "index"), [(0, 0), (1, 1), (2, 0)])
def test_processes_share_devices_round_robin(monkeypatch, local_rank, index):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_at("cuda", local_rank) == torch.device("cuda", index)


def test_process_on_the_cpu_needs_no_index():
    assert device_at("cpu", 3) == torch.device("cpu")


def test_process_with_the_last_stage_records_the_run():
    cpu, placement = torch.device("cpu"), Placement.v(4)
    processes = [ProcessEnvironment(r, "start", cpu, device_to_device=False, placement=placement) for r in range(2)]
    assert [process.stages for process in processes] == [(0, 3), (1, 2)]
    assert [process.has_last_stage for process in processes] == [True, False]
