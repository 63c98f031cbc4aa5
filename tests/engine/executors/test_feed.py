"""Minibatches of an interval, read ahead where a stage has time."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Dataset

from pipetrain.data.interface import Split
from pipetrain.data.loader import Loader
from pipetrain.data.samples import NamedSamples
from pipetrain.engine.device_queue import SideStream
from pipetrain.engine.executors import feed as feeds
from pipetrain.engine.executors.feed import Feed, Uploads
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.tensors import dense

CPU = torch.device("cpu")
ALL = DrainInterval(0, 0, 4, 0)


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
    return Feed(loader, interval, Uploads(CPU), inputs=inputs, targets=targets), numbers


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
        assert ahead.targets().on_host[0].tolist() == [10 * first, 10 * first + 10]
        ahead.prepare()
    assert numbers.read == [2, 3, 4, 5, 6, 7]


def test_feed_of_first_and_last_stage_reads_each_sample_once():
    ahead, numbers = feed(inputs=True, targets=True)
    inputs = [ahead.inputs()[0] for _ in range(2)]
    assert numbers.read == [2, 3, 4, 5]
    ahead.prepare()  # targets are still there, as where a last stage has yet to take them
    assert numbers.read == [2, 3, 4, 5, 6, 7]
    inputs.append(ahead.inputs()[0])
    targets = [ahead.targets().on_device[0] for _ in range(3)]
    for x, y in zip(inputs, targets, strict=True):
        assert (10 * x.flatten()).tolist() == y.tolist()
    assert numbers.read == [2, 3, 4, 5, 6, 7]


def test_feed_of_a_middle_stage_reads_nothing():
    ahead, numbers = feed(inputs=False, targets=False)
    ahead.prepare()
    assert numbers.read == []
    with pytest.raises(IndexError):
        ahead.inputs()


@pytest.fixture
def device(monkeypatch):
    """A device that queues: the page-locked memory taken for it, and the number of copies that the host waited for."""
    state = SimpleNamespace(uploads=None, locked=[], waits=0)

    def lock(size):
        state.locked.append(size)
        return torch.empty(size, dtype=torch.uint8)

    class Event:
        def synchronize(self):
            state.waits += 1

    monkeypatch.setattr(feeds, "queues", lambda device: device.type == "meta")
    monkeypatch.setattr(feeds, "SideStream", lambda _device: SideStream(CPU))
    monkeypatch.setattr(feeds, "page_locked", lock)
    monkeypatch.setattr(feeds, "event", lambda _device: Event())
    monkeypatch.setattr(feeds, "_BLOCK_BYTES", 16)
    state.uploads = Uploads(torch.device("meta"))
    return state


def test_uploads_take_page_locked_memory_once(device):
    device.uploads.lock()
    assert device.locked == [16 * feeds._BLOCKS]
    for size in (1, 5, 1000):
        device.uploads.start((torch.zeros(size),))
    assert len(device.locked) == 1


def test_block_is_filled_again_only_after_its_copy(device):
    device.uploads.start((torch.zeros(16 * feeds._BLOCKS, dtype=torch.int8),))
    assert device.waits == 0
    device.uploads.start((torch.zeros(16 * 3, dtype=torch.int8),))
    assert device.waits == 3


@pytest.mark.parametrize(
    "tensor", [torch.zeros(0, 3), torch.zeros((), dtype=torch.bool), torch.zeros(2, 5).t(), torch.zeros(9, 4)[::2]]
)
def test_uploads_keep_shape_and_memory_order(device, tensor):
    (copy,) = device.uploads.hand_over(device.uploads.start((tensor,)))
    assert (copy.device.type, copy.dtype, copy.shape) == ("meta", tensor.dtype, tensor.shape)
    assert copy.stride() == dense(tensor).stride()


def test_feed_starts_copies_when_it_reads_ahead(device):
    numbers = Numbers()
    ahead = Feed(Loader(numbers, batch_size=2, shuffle=False), ALL, device.uploads, inputs=True, targets=True)
    ahead.prepare()
    assert (numbers.read, len(device.locked)) == ([0, 1], 1)
    targets = ahead.targets()
    assert targets.on_host[0].tolist() == [0, 10]
    assert ahead.inputs()[0].device.type == targets.on_device[0].device.type == "meta"
    assert numbers.read == [0, 1]


class Bytes:
    """Samples stored as bytes, which count as halves."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        (stored,), target = self.stored(i)
        return self.on_device((stored,))[0], target

    def stored(self, i):
        return (torch.tensor([i, i + 1], dtype=torch.uint8),), i

    def on_device(self, inputs):
        return (inputs[0] / 2,)


@pytest.mark.parametrize("stored", [False, True])
def test_inputs_are_finished_once_they_are_on_the_device(stored):
    loader = Loader(Bytes(), batch_size=2, shuffle=False)
    loader.stored = stored
    (read,) = next(loader.inputs(0))
    assert read.dtype == (torch.uint8 if stored else torch.float32)
    (inputs,) = Feed(loader, DrainInterval(0, 0, 2, 0), Uploads(CPU), inputs=True, targets=False).inputs()
    assert inputs.tolist() == [[0, 0.5], [0.5, 1]]


def test_dict_samples_are_read_as_the_data_set_gives_them():
    named = NamedSamples(Bytes(), "target", "input")
    assert Split(named).stored is None
