"""The loss and metrics of an evaluation set."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from pipetrain.data.loader import Loader
from pipetrain.engine.device_queue import numbers
from pipetrain.engine.executors import evaluation
from pipetrain.engine.executors.evaluation import evaluate, evaluate_model
from pipetrain.engine.executors.feed import Targets, Uploads
from pipetrain.engine.losses import CrossEntropy, TokenCrossEntropy

CPU = Uploads(torch.device("cpu"))


def test_ignored_targets_alone_in_a_part_change_nothing():
    torch.manual_seed(0)
    x, y = torch.randn(6, 4), torch.tensor([1, -100, 2, 0, -100, 1])
    model, loss = nn.Linear(4, 3), nn.CrossEntropyLoss()
    with torch.no_grad():
        whole, single = (
            evaluate_model(
                Loader(TensorDataset(x, y), batch_size=size, shuffle=False), lambda inputs: (model(*inputs),), loss, CPU
            )
            for size in (6, 1)
        )
        assert whole["loss"] == pytest.approx(loss(model(x), y).item())
    assert single == pytest.approx(whole)
    ignored = Loader(TensorDataset(x, torch.full((6,), -100)), batch_size=3, shuffle=False)
    assert evaluate_model(ignored, lambda inputs: (model(*inputs).detach(),), loss, CPU).keys() == whole.keys()


@pytest.mark.parametrize("loss", [CrossEntropy(), nn.CrossEntropyLoss(torch.tensor([0.1, 0.2, 5]))])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_samples_and_weighted_classes_count_alike_in_parts_of_any_size(size, loss):
    torch.manual_seed(0)
    x, y = torch.randn(10, 4), torch.arange(10) % 3
    model = nn.Linear(4, 3).requires_grad_(requires_grad=False)
    loader = Loader(TensorDataset(x, y), batch_size=size, shuffle=False)
    metrics = evaluate_model(loader, lambda inputs: (model(*inputs),), loss, CPU)
    assert metrics["loss"] == pytest.approx(loss(model(x), y).item())
    assert metrics["top1"] == pytest.approx(100 * (model(x).argmax(1) == y).float().mean().item())


def test_evaluation_asks_for_targets_when_it_has_the_outputs():
    asked = []

    def outputs():
        for _ in range(2):
            asked.append("outputs")
            yield (torch.tensor([[1.0, 0.0]]),)

    def targets():
        asked.append("targets")
        return Targets((torch.tensor([0]),), (torch.tensor([0]),))

    assert evaluate(outputs(), targets, CrossEntropy())["top1"] == 100.0
    assert asked == ["outputs", "targets"] * 2


class Counting(TokenCrossEntropy):
    """Tells which targets it counts."""

    def __init__(self):
        super().__init__(ignore_index=0)
        self.counted = []

    def count(self, targets):
        self.counted.append(targets)
        return super().count(targets)


def test_device_evaluation_counts_on_host_and_reads_once(monkeypatch):
    torch.manual_seed(0)
    parts = [((torch.randn(n, 4, 5),), (torch.randint(0, 5, (n, 4)),)) for n in (3, 1, 2)]
    targets = [Targets(target, (target[0].clone(),)) for _, target in parts]
    expected = evaluate([output for output, _ in parts], iter(targets).__next__, Counting())
    reads, loss = [], Counting()
    monkeypatch.setattr(evaluation, "queues", lambda _device: True)
    monkeypatch.setattr(evaluation, "numbers", lambda scalars: reads.append(len(scalars)) or numbers(scalars))
    waits = []

    @contextmanager
    def waiting(what):
        before = len(reads)
        yield
        waits.append((what, len(reads) - before))

    assert evaluate([output for output, _ in parts], iter(targets).__next__, loss, waiting=waiting) == expected
    assert waits == [("its device", 1)]
    assert reads == [9]  # loss, log-likelihood and hits of each part
    assert all(counted is each.on_host[0] for counted, each in zip(loss.counted, targets, strict=True))
