"""Samples read and collated into minibatches."""

import pickle

import pytest
import torch

from pipetrain.data.fetch import Fetch
from pipetrain.engine.errors import DataError


class Drawn:
    """Samples of random numbers; tells its targets without them where asked to."""

    def __init__(self):
        self.read = 0

    def __getitem__(self, index):
        self.read += 1
        return torch.rand(2), torch.tensor(index)


class Telling(Drawn):
    def target(self, index):
        return torch.tensor(index)


def test_sample_is_drawn_alike_in_any_minibatch_of_its_epoch():
    fetch = Fetch(Drawn(), 7, inputs=True, targets=True)
    before = torch.default_generator.get_state()
    (first,), (targets,) = fetch(3, [5, 1])
    (again,), _ = fetch(3, [1, 2, 5])
    assert targets.tolist() == [5, 1]
    assert torch.equal(first, again[[2, 0]])
    assert not torch.equal(first, fetch(4, [5, 1])[0][0])
    assert torch.equal(torch.default_generator.get_state(), before)


@pytest.mark.parametrize(("dataset", "read"), [(Drawn, 2), (Telling, 0)])
def test_targets_are_read_without_inputs_where_possible(dataset, read):
    fetch = Fetch(dataset(), 0, inputs=False, targets=True)
    assert fetch.decodes is (read > 0)
    inputs, (targets,) = fetch(0, [4, 2])
    assert (inputs, targets.tolist(), fetch.dataset.read) == ((), [4, 2], read)


class Padding(Telling):
    """Sample i is of i ones; a minibatch is padded with zeros, and has the lengths as a second input."""

    def __getitem__(self, index):
        return torch.ones(index), torch.full((index,), index)

    def collate(self, pairs):
        inputs, targets = zip(*pairs, strict=True)
        padded = [torch.nn.utils.rnn.pad_sequence(side, batch_first=True) for side in (inputs, targets)]
        return (padded[0], torch.tensor([len(each) for each in inputs])), padded[1]


def test_data_set_pads_its_own_minibatches():
    inputs, targets = Fetch(Padding(), 0, inputs=True, targets=True)(0, [1, 3])
    assert [each.tolist() for each in inputs] == [[[1, 0, 0], [1, 1, 1]], [1, 3]]
    assert [each.tolist() for each in targets] == [[[1, 0, 0], [3, 3, 3]]]
    assert Fetch(Padding(), 0, inputs=True, targets=False)(0, [2])[1] == ()
    none, (alone,) = Fetch(Padding(), 0, inputs=False, targets=True)(0, [1, 2])
    assert (none, alone.tolist()) == ((), [[1, 0], [2, 2]])


def test_fetch_reaches_a_worker_process():
    fetch = pickle.loads(pickle.dumps(Fetch(Drawn(), 7, inputs=True, targets=False)))
    assert fetch(0, [0])[0][0].shape == (1, 2)


def raises(*_given):
    return {}["label"]


@pytest.mark.parametrize(
    ("asked", "inputs", "what"),
    [
        ("__getitem__", True, "sample 2"),
        ("target", False, r"target\(2\)"),
        ("collate", True, "Asked.collate of samples 2 to 1"),
    ],
)
def test_dataset_exception_is_shown_with_request_and_line(asked, inputs, what):
    dataset = type("Asked", (Telling,), {asked: raises})()
    line = raises.__code__.co_firstlineno + 1
    with pytest.raises(DataError, match=rf"^dataset: {what}: KeyError: 'label' \(.*test_fetch.py:{line}\)$"):
        Fetch(dataset, 0, inputs=inputs, targets=True)(0, [2, 1])


def test_out_of_memory_is_not_reported_as_wrong_samples(monkeypatch):
    def no_memory(_values):
        raise RuntimeError("unable to allocate shared memory(shm)")

    monkeypatch.setattr("pipetrain.data.fetch.default_collate", no_memory)
    with pytest.raises(RuntimeError, match="shared memory"):
        Fetch(Drawn(), 7, inputs=True, targets=True)(0, [0, 1])
