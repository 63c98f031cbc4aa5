"""What a device has queued; here with the CPU, and with stand-ins for tensors of a device."""

import pytest
import torch

from pipetrain.engine import device_queue
from pipetrain.engine.device_queue import SideStream, event, numbers, queues, synchronize, together

CPU = torch.device("cpu")


@pytest.fixture
def queued(monkeypatch):
    """All tensors are taken for tensors of a device."""
    monkeypatch.setattr(device_queue, "queues", lambda _device: True)


def test_cpu_queues_nothing():
    assert not queues(CPU)
    event(CPU).synchronize()
    synchronize(CPU)
    with SideStream(CPU).entered():
        assert torch.ones(2).sum() == 2


SCALARS = [torch.tensor(0.1), torch.tensor([7]), torch.tensor(data=True), torch.tensor(0.2), torch.tensor(2**40)]


@pytest.mark.parametrize("on_device", [False, True])
def test_numbers_keep_their_kind_and_order(on_device, monkeypatch):
    monkeypatch.setattr(device_queue, "queues", lambda _device: on_device)
    found = numbers(SCALARS)
    assert found == [torch.tensor(0.1).item(), 7, True, torch.tensor(0.2).item(), 2**40]
    assert [type(each) for each in found] == [float, int, bool, float, int]
    assert numbers([]) == []


@pytest.mark.usefixtures("queued")
def test_device_numbers_are_read_together_by_type(monkeypatch):
    read, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda each: read.append(each.shape) or tolist(each))
    numbers(SCALARS)
    assert read == [(2,), (2,), (1,)]


def test_cpu_takes_together_what_its_caches_hold():
    sizes = {"a": 30_000, "b": 30_000, "c": 10_000, "d": 200_000, "e": 1}
    weights = {name: torch.empty(size) for name, size in sizes.items()}
    assert together(weights) == [["a", "b"], ["c"], ["d"], ["e"]]


@pytest.mark.usefixtures("queued")
def test_device_takes_all_weights_together():
    weights = {name: torch.empty(100_000) for name in "abc"}
    assert together(weights) == [["a", "b", "c"]]
    assert together({}) == []
