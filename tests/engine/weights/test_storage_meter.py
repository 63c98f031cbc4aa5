"""The meter of live weight versions."""

from collections import deque

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pipetrain.engine.weights import storage_meter
from pipetrain.engine.weights.storage_meter import StorageMeter


def test_meter_counts_the_versions_alive_and_their_bytes():
    meter = StorageMeter()
    first = {"w": torch.zeros(10), "b": torch.zeros(2)}
    meter.watch(first)
    assert (meter.versions_max, meter.bytes_peak) == (1, 48)
    second = {"w": torch.zeros(10)}
    meter.watch(second)
    assert (meter.versions_max, meter.bytes_peak) == (2, 88)
    del first
    third = {"w": torch.zeros(10)}
    meter.watch(third)
    assert (meter.versions_max, meter.bytes_peak) == (2, 88)
    fourth = {"w": torch.zeros(10)}
    meter.watch(fourth)
    assert (meter.versions_max, meter.bytes_peak) == (3, 120)


def test_meter_counts_a_version_while_a_tensor_or_view_lives():
    meter = StorageMeter()
    first = {"w": torch.zeros(10), "b": torch.zeros(2)}
    view = first["b"][:1]
    meter.watch(first)
    del first
    second = {"w": torch.zeros(10)}
    meter.watch(second)
    assert meter.versions_max == 2
    assert view.numel() == 1


def test_memory_lent_again_counts_for_its_present_set():
    meter = StorageMeter()
    first = {"w": torch.zeros(10), "b": torch.zeros(2)}
    meter.watch(first)
    meter.watch({name: tensor.data for name, tensor in first.items()})
    assert (meter.versions_max, meter.bytes_peak) == (1, 48)
    meter.watch({"w": first["w"].data, "b": torch.zeros(2)})
    assert (meter.versions_max, meter.bytes_peak) == (2, 56)


def test_meter_of_long_history_is_exact_visiting_few_sets(monkeypatch):
    looked = []
    expired = StorageWeakRef.expired
    monkeypatch.setattr(StorageWeakRef, "expired", lambda ref: looked.append(ref) or expired(ref))
    meter, history = StorageMeter(), deque(maxlen=100)
    for count in range(300):
        history.append({"w": torch.zeros(10), "b": torch.zeros(2)})
        if count == 200:
            looked.clear()
        meter.watch(history[-1])
    assert (meter.versions_max, meter.bytes_peak) == (100, 4800)
    assert len(looked) < 4 * 100
    history.clear()
    meter.mark()
    assert (meter.versions_max, meter.versions_since) == (100, 0)


def test_set_that_is_let_go_of_late_does_not_exceed_what_is_allowed(monkeypatch):
    meter, sets = StorageMeter(), [{"w": torch.zeros(10)}]
    meter.mark(allowed=1)
    meter.watch(sets[0])
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        if len(naps) == 20:
            sets.clear()

    monkeypatch.setattr(storage_meter.time, "sleep", sleep)
    monkeypatch.setattr(storage_meter, "queued", lambda _tensors: True)
    meter.watch(second := {"w": torch.zeros(10)})
    assert second["w"].numel() == 10
    assert (meter.versions_max, len(naps)) == (1, 20)
