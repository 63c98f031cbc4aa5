"""What a device has queued; here with the CPU, and with stand-ins for tensors of a device."""

import pytest
import torch

from pipetrain.engine import device_queue
from pipetrain.engine.device_queue import HostCopies, SideStream, event, numbers, queues, synchronize, together

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
        assert HostCopies([torch.ones(2)]).take()[0].sum() == 2


def test_copies_keep_values_and_memory_order():
    tensors = [torch.arange(6.0).reshape(2, 3).t(), torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)]
    expected = [tensor.clone() for tensor in tensors]
    copies = HostCopies(tensors)
    for tensor in tensors:
        tensor.zero_()
    for copy, before in zip(copies.take(), expected, strict=True):
        assert torch.equal(copy, before)
        assert copy.stride() == before.stride()


def test_copies_from_a_device_reuse_memory(waits):
    first = HostCopies([torch.zeros(3), torch.zeros(2, 2)])
    tensors = [torch.ones(2, 2).t(), torch.ones(3, dtype=torch.float64), torch.ones(1)]
    again = HostCopies(tensors, first.memory)
    assert all(torch.equal(copy, tensor) for copy, tensor in zip(again.take(), tensors, strict=True))
    assert [copy.stride() for copy in again.take()] == [tensor.stride() for tensor in tensors]
    assert [block.data_ptr() for block in again.memory][: len(first.memory)] == [b.data_ptr() for b in first.memory]
    grown = HostCopies([torch.ones(999)], again.memory)
    assert len(grown.memory) == len(again.memory) + 1
    assert sum(waits.locked) == sum(block.nbytes for block in grown.memory)


@pytest.mark.parametrize(
    "sizes",
    [[1000, 1000, 1000], [65, 4, 4, 4, 4000, 17], [100_000] * 37 + [400] * 300, [2**20, 12], [0, 5], []],
)
def test_page_locked_blocks_are_powers_of_two_and_hardly_larger_than_the_tensors(waits, sizes):
    tensors = [torch.full((size,), i % 7, dtype=torch.int8) for i, size in enumerate(sizes)]
    copies = HostCopies(tensors).take()
    assert all(torch.equal(copy, tensor) for copy, tensor in zip(copies, tensors, strict=True))
    assert all(size.bit_count() == 1 for size in waits.locked)
    assert sum(waits.locked) <= sum(max(64, size + 63) for size in sizes) + 2 * max(sizes, default=0)


def test_all_copies_from_a_device_are_waited_for_once(waits):
    copies = HostCopies([torch.ones(2), torch.ones(3)])
    assert waits.number == 0
    copies.take()
    assert waits.number == 1


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
