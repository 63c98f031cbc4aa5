"""Copies in host memory: of losses, while the host continues, and of checkpoints, through little page-locked memory."""

import pytest
import torch

from pipetrain.runner.tracking import host_copies as copying
from pipetrain.runner.tracking.host_copies import HostCopy, host_copies

TENSORS = [
    torch.arange(1000.0),
    torch.arange(6).reshape(2, 3).t(),
    torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
    torch.tensor(3),
    torch.empty(0, 3),
    torch.ones(2).bfloat16(),
    torch.arange(10)[3:5],
    torch.ones(1).expand(70),
]


@pytest.fixture
def device(monkeypatch):
    """Tensors are taken for those of a device; notes the page-locked memory, and the copies that were waited for."""

    class Noted:
        locked, copied, waited = [], 0, 0

        def __init__(self, _device):
            Noted.copied += 1
            self.number = Noted.copied

        def synchronize(self):
            assert self.number == Noted.waited + 1
            Noted.waited += 1

    monkeypatch.setattr(copying, "queues", lambda _device: True)
    monkeypatch.setattr(copying, "event", Noted)
    monkeypatch.setattr(copying, "BLOCK_BYTES", 64)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda each: Noted.locked.append(each.nbytes) or each)
    return Noted


def check(copies):
    for copy, tensor in zip(copies, TENSORS, strict=True):
        assert torch.equal(copy, tensor)
        assert copy.dtype == tensor.dtype
        assert copy.untyped_storage().nbytes() == tensor.nbytes
        assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not copy.numel()


def test_copies_of_the_host_have_their_tensors_size():
    check(host_copies(TENSORS))


def test_copies_of_a_device_pass_through_two_blocks_in_turn(device):
    check(host_copies(TENSORS))
    assert device.locked == [64, 64]
    assert device.waited == device.copied > 4000 / 64


def test_no_memory_is_locked_for_nothing(device):
    assert host_copies([]) == []
    assert device.locked == []


def test_copy_keeps_values_and_memory_order():
    for tensor in (torch.arange(6.0).reshape(2, 3).t(), torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)):
        expected = tensor.clone()
        copy = HostCopy(tensor)
        tensor.zero_()
        assert torch.equal(copy.take(), expected)
        assert copy.take().stride() == expected.stride()


def test_copy_from_a_device_waits_once_and_reuses_memory(device):
    first = HostCopy(torch.arange(3.0))
    assert (device.waited, device.locked) == (0, [12])
    assert (first.take().tolist(), device.waited) == ([0.0, 1.0, 2.0], 1)
    again = HostCopy(torch.tensor(7), first.memory)
    assert (again.take().item(), again.memory.data_ptr()) == (7, first.memory.data_ptr())
    assert device.locked == [12]
