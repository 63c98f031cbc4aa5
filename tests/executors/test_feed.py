"""Minibatches of an interval, read ahead where a stage has time."""

import pytest
import torch
from torch.utils.data import Dataset

from pipetrain.data.loader import Loader
from pipetrain.executors.feed import Feed
from pipetrain.program.drain_interval import DrainInterval


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


def test_device_feed_copies_pinned_inputs_and_keeps_targets(monkeypatch):
    pinned = []
    monkeypatch.setattr("pipetrain.executors.feed.queues", lambda device: device.type == "meta")
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda each: pinned.append(id(each)) or each)
    loader = Loader(Numbers(), batch_size=2, shuffle=False)
    ahead = Feed(loader, DrainInterval(0, 1, 4, 1), torch.device("meta"), inputs=True, targets=True)
    ahead.prepare()
    assert len(pinned) == 2  # before they are asked for
    (targets,) = ahead.host_targets()
    assert targets.tolist() == [20, 30]
    assert id(targets) in pinned
    assert ahead.inputs()[0].device.type == ahead.targets()[0].device.type == "meta"
