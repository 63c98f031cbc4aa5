"""Where a worker computes."""

import pytest
import torch

from pipetrain.launch import worker


@pytest.mark.parametrize(("local_rank", "index"), [(0, 0), (1, 1), (2, 0)])
def test_processes_share_devices_round_robin(monkeypatch, local_rank, index):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert worker._device("cuda", local_rank) == torch.device("cuda", index)


def test_simulated_run_names_its_device(monkeypatch):
    class AskedError(Exception):
        pass

    def run(job, stage, device):
        raise AskedError(device)

    class Job:
        device = "cuda"

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(worker, "_Run", run)
    with pytest.raises(AskedError) as caught:
        worker.simulate(Job(), lambda _record: None)
    assert caught.value.args == (torch.device("cuda", 0),)  # torch.cuda.set_device refuses one without an index
