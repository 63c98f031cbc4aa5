"""Which device each process of a run computes on."""

import pytest
import torch

from pipetrain.run.device import device_at


@pytest.mark.parametrize(("local_rank", "index"), [(0, 0), (1, 1), (2, 0)])
def test_processes_share_devices_round_robin(monkeypatch, local_rank, index):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_at("cuda", local_rank) == torch.device("cuda", index)


def test_process_on_the_cpu_needs_no_index():
    assert device_at("cpu", 3) == torch.device("cpu")
