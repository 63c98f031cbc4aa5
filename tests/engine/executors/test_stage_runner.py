"""What the stages of a pipeline compute for each microbatch, whatever the schedule."""

import copy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from support.methods import MethodCase
from support.pipelines import Function, batches, pipeline
from torch import nn

from pipetrain.engine.arithmetic import ComputeOptions
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.program.custom_schedule import check_custom_schedule
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.schedules.base import Family, ListSchedule
from pipetrain.engine.schedules.operation import backward, forward, update

MINIBATCHES, SIZE = 6, 4


def dropping(case, num_microbatches=1):
    """A pipeline that learns nothing and drops values on both stages."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    return pipeline(model, [2], case, num_microbatches, rate=lambda _k: 0.0)


def equal_minibatches(num_microbatches=1):
    """Minibatches of one and the same sample."""
    samples = MINIBATCHES * SIZE
    return batches(torch.ones(samples, 4), torch.zeros(samples, dtype=torch.long), SIZE, num_microbatches)


@pytest.mark.parametrize("num_microbatches", [1, 2])
@pytest.mark.parametrize("case", ["gpipe", "pipedream", "pipemare"])
def test_dropout_draws_anew_for_every_minibatch_of_the_run(case, num_microbatches):
    pipe = dropping(case, num_microbatches).train(equal_minibatches(num_microbatches), epochs=2)
    assert len(set(pipe.losses)) == len(pipe.losses) == 2 * MINIBATCHES


def test_dropout_does_not_depend_on_where_the_pipeline_drains():
    whole, drained = dropping("pipedream"), dropping("pipedream")
    whole.executor.train(equal_minibatches(), DrainInterval.whole(MINIBATCHES))
    for first, last in ((0, 1), (1, 4), (4, MINIBATCHES)):
        drained.executor.train(equal_minibatches(), DrainInterval(0, first, last, first))
    assert drained.losses == whole.losses


@dataclass(frozen=True)
class LateUpdate(ListSchedule):
    """1F1B whose updates come after the next forward."""

    name: ClassVar[str] = "late_update"
    family: ClassVar[Family] = Family.CONTINUOUS

    def in_flight(self, r, D, _N):
        return D - r

    def delay(self, r, D, _N):
        return D - r

    def newest_at_forward(self, r, D, _N, t, _j):
        return max(0, t - (D - r))

    def operations(self, r, D, _N, M):
        listed, last = [], D - 1 - r
        for k in range(M + last + 1):
            listed += (
                [forward(k)] * (k < M)
                + [update(k - last - 1)] * (k > last)
                + [backward(k - last)] * (0 <= k - last < M)
            )
        return listed


@dataclass(frozen=True)
class SideBySide(ListSchedule):
    """The forwards of two minibatches take turns."""

    name: ClassVar[str] = "side_by_side"
    family: ClassVar[Family] = Family.CONTINUOUS

    def in_flight(self, _r, _D, N):
        return 2 * N

    def delay(self, _r, _D, _N):
        return 1

    def newest_at_forward(self, _r, _D, _N, t, _j):
        return t // 2 * 2

    def operations(self, _r, _D, N, M):
        listed = []
        for first in range(0, M, 2):
            pair = range(first, min(first + 2, M))
            listed += [forward(t, j) for j in range(N) for t in pair]
            listed += [op for t in pair for op in (*(backward(t, j) for j in range(N)), update(t))]
        return listed


def two_layers(case, num_microbatches=1, **chosen):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    loader = batches(torch.randn(32, 4), torch.arange(32) % 4, SIZE, num_microbatches)
    return pipeline(model, [1], case, num_microbatches, **chosen).train(loader)


def test_gradients_are_unscaled_whenever_the_update_comes():
    case = MethodCase(NaiveAsync(), LateUpdate())
    check_custom_schedule(LateUpdate(), 2, 1)
    plain, scaled = (two_layers(case, arithmetic=ComputeOptions(precision)) for precision in ("fp32", "fp16"))
    assert scaled.losses == pytest.approx(plain.losses, abs=0.01)


def test_minibatches_whose_forwards_take_turns_keep_their_inputs():
    seen = []
    inputs = torch.arange(8.0)[:, None].expand(8, 4).clone()
    model = nn.Sequential(Function(lambda x: seen.append(x[:, 0].tolist()) or x), nn.Linear(4, 4))
    check_custom_schedule(SideBySide(), 2, 2)
    pipe = pipeline(model, [1], MethodCase(NaiveAsync(), SideBySide()), 2)
    pipe.train(batches(inputs, torch.arange(8) % 4, 4, 2))
    assert seen == [[0, 1], [4, 5], [2, 3], [6, 7]]


class MeanOfMarked:
    """The mean over the samples whose target is not negative, NaN without any."""

    def __call__(self, outputs, targets):
        marked = targets >= 0
        return (outputs[:, 0] * marked).sum() / marked.sum()

    def count(self, targets):
        return int((targets >= 0).sum())


@pytest.mark.parametrize("num_microbatches", [2, 4])
def test_microbatch_that_counts_nothing_changes_nothing(num_microbatches):
    torch.manual_seed(0)
    inputs, targets = torch.randn(8, 4), torch.tensor([-1, -1, 1, 1, 0, 2, 1, 1])
    ends = []
    for number in (1, num_microbatches):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
        pipe = pipeline(model, [1], "gpipe", number, loss=MeanOfMarked())
        ends.append(pipe.train(batches(inputs, targets, 8, number)).state())
    for name, tensor in ends[1].items():
        torch.testing.assert_close(tensor, ends[0][name])


@pytest.mark.parametrize("number", [1, 4])
def test_class_weights_count_as_in_the_whole_minibatch(number):
    torch.manual_seed(0)
    inputs, targets = torch.randn(8, 4), torch.tensor([0, 0, 1, 0, 2, 2, 0, 1])
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.05, 1.0, 7.0]), ignore_index=1)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    expected = loss(plain(inputs), targets)
    expected.backward()
    optimizer.step()
    pipe = pipeline(
        model, [1], "gpipe", number, build=lambda p: torch.optim.SGD(p, lr=0.1), rate=lambda _: 0.1, loss=loss
    )
    pipe.train(batches(inputs, targets, 8, number))
    assert pipe.losses == [pytest.approx(expected.item(), rel=1e-6)]
    for name, tensor in pipe.state().items():
        torch.testing.assert_close(tensor, plain.state_dict()[name])
