"""Linear weight prediction against a reference by hand, and in both executors."""

import pytest
import torch
from support.methods import MethodCase
from support.pipelines import batches, pipeline
from support.worker_pool import distributed, job, simulated
from torch import nn

from pipetrain.methods.lwp import LinearWeightPrediction
from pipetrain.schedules.one_f_one_b import OneFOneB

LWP = MethodCase(LinearWeightPrediction(), OneFOneB())


def by_hand(layers, x, y, size, rate, momentum):
    """Scalar products in a chain, y = w2 · w1 · w0 · x under squared error, written out; a stage each."""
    history, buffers = [[w] for w in layers], [0.0] * len(layers)
    for t in range(len(x) // size):
        xs, ys = x[t * size : (t + 1) * size], y[t * size : (t + 1) * size]
        forward = []
        for r, versions in enumerate(history):
            read = max(0, t - (len(layers) - 1 - r))
            change = versions[read] - versions[read - 1] if read else 0.0
            forward.append(versions[read] + (t - read) * change)
        values = [xs]
        for w in forward:
            values.append(w * values[-1])
        g = 2 * (values[-1] - ys) / size
        for r in reversed(range(len(layers))):
            newest = history[r][-1]
            buffers[r] = momentum * buffers[r] + (g * values[r]).sum()
            g = g * newest
            history[r].append(newest - rate * buffers[r])
    return [versions[-1] for versions in history]


class Product(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(value, dtype=torch.float64))

    def forward(self, x):
        return self.w * x


def test_lwp_forward_extrapolates_along_last_change():
    torch.manual_seed(0)
    x = torch.randn(48, dtype=torch.float64)
    start = [0.9, 1.1, 0.7]
    pipe = pipeline(
        nn.Sequential(*map(Product, start)),
        [1, 2],
        LWP,
        build=lambda parameters: torch.optim.SGD(parameters, lr=0.0, momentum=0.5),
        rate=lambda _k: 0.03,
        loss=nn.MSELoss(),
    )
    pipe.train(batches(x, 2 * x, 4))
    expected = by_hand(start, x, 2 * x, 4, 0.03, 0.5)
    assert [value.item() for _, value in sorted(pipe.state().items())] == pytest.approx(
        [float(w) for w in expected], rel=1e-12
    )


def test_lwp_holds_one_prediction_and_has_the_staleness_of_1f1b():
    pipe = pipeline(nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]), [1, 2, 3], LWP)
    pipe.train(batches(torch.randn(40, 4), torch.randint(0, 4, (40,)), 4))
    assert pipe.reports("weight_versions_max") == [2, 2, 2, 1]
    assert pipe.reports("forward_staleness") == [[3], [2], [1], [0]]


def test_lwp_has_equal_bits_in_both_executors(tmp_path):
    (result,) = distributed([job(tmp_path / "d", LWP, 2, train={"microbatches": 2})])
    expected = simulated(job(tmp_path / "s", LWP, 2, train={"microbatches": 2}))
    assert result["weights_sha256"] == expected["weights_sha256"]
