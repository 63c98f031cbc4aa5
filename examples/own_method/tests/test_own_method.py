"""The weights under own_method, against a reference without pipetrain, bit for bit."""

import copy

import torch
from pipetrain import DrainInterval, Loader, OptimizerFactory, PipelineRules, Training, build_pipeline, chain_of
from pipetrain.engine.schedules import one_f_one_b
from torch import nn
from torch.utils import data

from own_method.method import OwnMethod

STEPS, SIZE, RATE = 8, 4, 0.1


def reference(layers: nn.Sequential, x: torch.Tensor, y: torch.Tensor, power: float) -> list[torch.Tensor]:
    """A stage for each layer under 1F1B: F and B of minibatch t read version max(0, t - delay)."""
    versions = [[layer] for layer in layers]
    delays = [2, 1, 0]
    for t, (inputs, targets) in enumerate(zip(x.split(SIZE), y.split(SIZE), strict=True)):
        read = nn.Sequential(*(each[max(0, t - delay)] for each, delay in zip(versions, delays, strict=True)))
        read.zero_grad()
        nn.functional.cross_entropy(read(inputs), targets).backward()
        for each, layer, delay in zip(versions, read, delays, strict=True):
            each.append(copy.deepcopy(each[-1]))
            for weight, stale in zip(each[-1].parameters(), layer.parameters(), strict=True):
                weight.grad = stale.grad
            torch.optim.SGD(each[-1].parameters(), RATE * (1 + delay) ** -power).step()
    return [weight for each in versions for weight in each[-1].parameters()]


def test_weights_equal_reference() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(5, 5) for _ in range(3)))
    x, y = torch.randn(STEPS * SIZE, 5), torch.arange(STEPS * SIZE) % 5
    expected = reference(copy.deepcopy(layers), x, y, power=0.7)

    rules = PipelineRules(one_f_one_b.OneFOneB(), OwnMethod(power=0.7), num_stages=3, num_microbatches=1)
    optimizer = OptimizerFactory(lambda weights: torch.optim.SGD(weights, RATE), lambda update: RATE)
    pipeline = build_pipeline(
        chain_of(layers), [(0, 1), (1, 2), (2, 3)], rules, Training(optimizer, nn.CrossEntropyLoss())
    )
    loader = Loader(data.TensorDataset(x, y), batch_size=SIZE, microbatches=1, shuffle=False)
    pipeline.train(loader, DrainInterval(0, first=0, last=STEPS, start=0))
    weights = [weight for stage in pipeline.stages for weight in stage.state().values()]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(weights, expected, strict=True))
