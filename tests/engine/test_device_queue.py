"""What a device has queued; here with the CPU, and with stand-ins for tensors of a device."""

import pytest
import torch

from pipetrain.engine import device_queue
from pipetrain.engine.device_queue import HostCopy, SideStream, event, numbers, queues, synchronize, together

CPU = torch.device("cpu")


class Waits:
    """Counts the copies to the host that are waited for, as if all tensors were on a device."""

    def __init__(self, monkeypatch):
        self.number = 0
        self.locked = []
        monkeypatch.setattr(device_queue, "queues", lambda _device: True)
        monkeypatch.setattr(device_queue, "event", lambda _device: self)
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda each: self.locked.append(each.nbytes) or each)

    def synchronize(self):
        self.number += 1


@pytest.fixture
def waits(monkeypatch):
    return Waits(monkeypatch)


def test_cpu_queues_nothing():
    assert not queues(CPU)
    event(CPU).synchronize()
    synchronize(CPU)
    with SideStream(CPU).entered():
        assert HostCopy(torch.ones(2)).take().sum() == 2


def test_copies_keep_values_and_memory_order():
    for tensor in (torch.arange(6.0).reshape(2, 3).t(), torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)):
        expected = tensor.clone()
        copy = HostCopy(tensor)
        tensor.zero_()
        assert torch.equal(copy.take(), expected)
        assert copy.take().stride() == expected.stride()


def test_copy_from_a_device_waits_once_and_reuses_memory(waits):
    first = HostCopy(torch.arange(3.0))
    assert (waits.number, waits.locked) == (0, [12])
    assert (first.take().tolist(), waits.number) == ([0.0, 1.0, 2.0], 1)
    again = HostCopy(torch.tensor(7, dtype=torch.int64), first.memory)
    assert (again.take().item(), again.memory.data_ptr()) == (7, first.memory.data_ptr())
    assert waits.locked == [12]


SCALARS = [torch.tensor(0.1), torch.tensor([7]), torch.tensor(data=True), torch.tensor(0.2), torch.tensor(2**40)]


@pytest.mark.parametrize("on_device", [False, True])
def test_numbers_keep_their_kind_and_order(on_device, monkeypatch):
    monkeypatch.setattr(device_queue, "queues", lambda _device: on_device)
    found = numbers(SCALARS)
    assert found == [torch.tensor(0.1).item(), 7, True, torch.tensor(0.2).item(), 2**40]
    assert [type(each) for each in found] == [float, int, bool, float, int]
    assert numbers([]) == []


@pytest.mark.usefixtures("waits")
def test_device_numbers_are_read_together_by_type(monkeypatch):
    read, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda each: read.append(each.shape) or tolist(each))
    numbers(SCALARS)
    assert read == [(2,), (2,), (1,)]


def test_cpu_takes_together_what_its_caches_hold():
    sizes = {"a": 30_000, "b": 30_000, "c": 10_000, "d": 200_000, "e": 1}
    weights = {name: torch.empty(size) for name, size in sizes.items()}
    assert together(weights) == [["a", "b"], ["c"], ["d"], ["e"]]


@pytest.mark.usefixtures("waits")
def test_device_takes_all_weights_together():
    weights = {name: torch.empty(100_000) for name in "abc"}
    assert together(weights) == [["a", "b", "c"]]
    assert together({}) == []
