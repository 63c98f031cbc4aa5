"""Minibatches of an interval, read ahead where a stage has time."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Dataset

from pipetrain.engine.data.loader import Loader
from pipetrain.engine.executors import feed as feeds
from pipetrain.engine.executors.feed import Feed
from pipetrain.engine.program.drain_interval import DrainInterval


class Numbers(Dataset):
    def __init__(self):
        self.read = []

    def __len__(self):
        return 8

    def __getitem__(self, i):
        self.read.append(i)
        return torch.tensor([float(i)]), torch.tensor(10 * i)


def feed(inputs, targets, interval=DrainInterval(0, 1, 4, 1)):  # noqa: B008
    numbers = Numbers()
    loader = Loader(numbers, batch_size=2, shuffle=False)
    return Feed(loader, interval, torch.device("cpu"), inputs=inputs, targets=targets), numbers


def test_feed_reads_one_minibatch_ahead():
    ahead, numbers = feed(inputs=True, targets=False)
    for _ in range(3):
        ahead.prepare()
    assert numbers.read == [2, 3]
    assert ahead.inputs()[0].flatten().tolist() == [2, 3]
    assert numbers.read == [2, 3]
    assert ahead.inputs()[0].flatten().tolist() == [4, 5]


def test_feed_reads_nothing_beyond_the_drain_interval():
    ahead, numbers = feed(inputs=False, targets=True)
    for first in (2, 4, 6):
        assert ahead.targets()[0].tolist() == [10 * first, 10 * first + 10]
        ahead.prepare()
    assert numbers.read == [2, 3, 4, 5, 6, 7]


def test_one_stage_feed_reads_inputs_and_targets_once():
    ahead, numbers = feed(inputs=True, targets=True)
    inputs = [ahead.inputs()[0] for _ in range(2)]
    ahead.prepare()  # targets are still there
    targets = [ahead.targets()[0] for _ in range(2)]
    for x, y in zip(inputs, targets, strict=True):
        assert (10 * x.flatten()).tolist() == y.tolist()
    assert numbers.read == [2, 3, 4, 5]


def test_feed_of_a_middle_stage_reads_nothing():
    ahead, numbers = feed(inputs=False, targets=False)
    ahead.prepare()
    assert numbers.read == []
    with pytest.raises(IndexError):
        ahead.inputs()


class Event:
    """An event of a device, which notes how many minibatches had been taken when the host waits for it."""

    def __init__(self, waits, number):
        self._waits, self._number = waits, number

    def synchronize(self):
        self._waits.append(self._number)


@pytest.fixture
def device(monkeypatch):
    """A device that queues, page-locked memory that says what was taken of it, and the waits of the host for events."""
    state = SimpleNamespace(kind=torch.device("meta"), blocks=[], waits=[], events=0)

    def lock(size):
        state.blocks.append(torch.empty(size, dtype=torch.uint8))
        return state.blocks[-1]

    def event(_device):
        state.events += 1
        return Event(state.waits, state.events)

    addresses = lambda: {block.untyped_storage().data_ptr() for block in state.blocks}  # noqa: E731
    monkeypatch.setattr(feeds, "queues", lambda device: device.type == "meta")
    monkeypatch.setattr(feeds, "page_locked", lock)
    monkeypatch.setattr(feeds, "event", event)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda x: x.untyped_storage().data_ptr() in addresses())
    return state


def feed_of(dataset, device, interval, **sides):
    loader = Loader(dataset, batch_size=2, shuffle=False)
    return Feed(loader, interval, device.kind, **{"inputs": True, "targets": True, **sides})


def test_device_feed_reads_ahead_into_page_locked_memory(device):
    ahead = feed_of(Numbers(), device, DrainInterval(0, 1, 4, 1))
    assert not device.blocks
    ahead.prepare()
    taken = len(device.blocks)
    (targets,) = ahead.host_targets()
    assert targets.tolist() == [20, 30]
    assert targets.is_pinned()
    assert ahead.inputs()[0].device.type == ahead.targets()[0].device.type == "meta"
    assert ahead.inputs()[0].device.type == "meta"
    assert len(device.blocks) == taken == 2  # though more were read since


def test_page_locked_memory_is_written_again_once_it_was_copied(device, monkeypatch):
    monkeypatch.setattr(feeds, "_IN_TURN", 2)
    ahead = feed_of(Numbers(), device, DrainInterval(0, 0, 4, 0), inputs=False)
    places = []
    for number, first in enumerate((0, 2, 4, 6)):
        ahead.prepare()
        (targets,) = ahead.host_targets()
        assert targets.tolist() == [10 * first, 10 * first + 10]
        assert device.waits == list(range(1, number))  # for the copy of the minibatch before the last
        places.append(targets.data_ptr())
    assert places[:2] == places[2:]
    assert places[0] != places[1]


class Growing(Dataset):
    """Minibatches that the data set makes itself, the second longer than page-locked memory is."""

    SIZES = (3, 2**20, 5)

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return torch.full((self.SIZES[i],), i, dtype=torch.uint8), torch.tensor(i)

    def batches(self, _batch_size, samples):
        return [[i] for i in range(samples)]


def test_minibatch_larger_than_page_locked_memory_stays_in_ordinary_memory(device, monkeypatch):
    monkeypatch.setattr(feeds, "_LEAST_BYTES", 2**10)
    monkeypatch.setattr(feeds, "to_device", lambda tensors, _device: tensors)
    ahead = feed_of(Growing(), device, DrainInterval(0, 0, 3, 0), targets=False)
    read = [ahead.inputs()[0] for _ in range(3)]
    assert [each.is_pinned() for each in read] == [True, False, True]
    assert [each[0, 0].item() for each in read] == [0, 1, 2]
    assert [block.nbytes for block in device.blocks] == [3 * 2**10]
