"""What ran is held against the formulas: a method or schedule that does otherwise is found out while it runs."""

import pytest
import torch
from support.methods import METHODS, MethodCase, fitting_cases
from support.pipelines import batches, pipeline
from torch import nn
from typing_extensions import override

from pipetrain.errors import InvariantError
from pipetrain.methods import Method
from pipetrain.methods.naive_async import NaiveAsync
from pipetrain.methods.pipedream import PipeDream
from pipetrain.methods.timeprest import TiMePReSt
from pipetrain.program.weight_reads import StageContext, WeightRead
from pipetrain.schedules.base import Family
from pipetrain.schedules.nf1b import NF1B
from pipetrain.schedules.one_f_one_b import OneFOneB
from pipetrain.schedules.pipelined_backprop import PipeMareSchedule
from pipetrain.stage.measurements import Measurements
from pipetrain.weights.transforms import Predicted


def train(method, schedule, D=3, N=1, recompute=None):
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(D)])
    pipe = pipeline(net, range(1, D), MethodCase(method, schedule), N, recompute=recompute)
    return pipe.train(batches(torch.randn(48, 4), torch.arange(48) % 4, 4, N))


def found_out(*case, **settings):
    with pytest.raises(InvariantError) as caught:
        train(*case, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Whimsical(Method):
    """Reads other weights than it says when asked again, in operations of one kind."""

    name, family = "whimsical", Family.CONTINUOUS

    def __init__(self, kind, lie):
        self.kind, self.lie = kind, lie
        self.asked = set()

    def _answer(self, moment):
        key = (moment.context.stage, moment.operation)
        lies = moment.operation.kind == self.kind and moment.newest > 2 and key not in self.asked
        self.asked.add(key)
        return self.lie(moment.newest) if lies else WeightRead(moment.newest)

    @override
    def forward(self, moment):
        return self._answer(moment)

    @override
    def backward(self, moment, forward):
        return self._answer(moment)

    @override
    def recomputation(self, moment, forward):
        return self._answer(moment)

    @override
    def weight_versions(self, context: StageContext):
        return 9


@pytest.mark.parametrize("kind", ["F", "R", "B"])
@pytest.mark.parametrize(
    "lie", [lambda newest: WeightRead(newest - 1), lambda newest: WeightRead(newest, Predicted(1))]
)
def test_method_that_reads_other_versions_than_its_formula_is_an_error(kind, lie):
    message = found_out(Whimsical(kind, lie), OneFOneB(), recompute=range(3) if kind == "R" else None)
    stage, operation, read = message.split()[1].rstrip(":"), message.split()[2], message.split()[4]
    assert operation.startswith(kind)
    assert read == str(lie(3))
    assert message == (
        f"stage {stage}: {operation} reads {read} after 3 updates, and by the formulas of 1f1b and whimsical it reads "
        "v3 after 3"
    )


def test_method_that_reads_what_its_formula_gives_passes_the_audit():
    train(Whimsical("none", None), OneFOneB())


class Late(OneFOneB):
    """Says that it is 1F1B, and holds as much as PipeMare's schedule."""

    def operations(self, r, D, N, M):
        return PipeMareSchedule().operations(r, D, N, M)


@pytest.mark.parametrize("N", [1, 3])
def test_schedule_whose_lists_differ_from_its_formulas_is_an_error(N):
    assert "by the formulas of 1f1b and naive_async" in found_out(NaiveAsync(), Late(), N=N)


class Optimistic(NF1B):
    """Says that forwards find newer weights than they do."""

    def newest_at_forward(self, r, D, N, t, j):
        return max(0, super().newest_at_forward(r, D, N, t, j) + (t > 4))


def test_schedule_whose_formula_is_wrong_from_some_minibatch_on_is_an_error():
    assert "F5.0" in found_out(TiMePReSt(), Optimistic(), N=2)


class Greedy(PipeDream):
    """Stashes what it says it does not."""

    def weight_versions(self, context):
        return 1 if context.stage == 0 else super().weight_versions(context)


def test_more_weight_versions_than_the_method_declares_are_an_error():
    message = found_out(Greedy(), OneFOneB())
    assert message.startswith("stage 0 held 2 weight versions")
    assert message.endswith("its method may hold 1")


def test_weight_versions_are_held_to_the_limit_of_the_present_phase():
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    pipe = pipeline(net, [1, 2], [("pipedream", 5), (MethodCase(Greedy(), OneFOneB()), 7)])
    with pytest.raises(InvariantError, match=r"stage 0 held 2 weight versions before update 6; .* may hold 1"):
        pipe.train(batches(torch.randn(48, 4), torch.arange(48) % 4, 4))
    assert pipe.reports("weight_versions_max")[0] == 3


class Keeper(nn.Linear):
    """A layer that keeps the very weights that it computed with last."""

    def forward(self, x):
        self.kept = self.weight.detach()
        return super().forward(x)


def test_weight_versions_are_counted_by_their_memory_whoever_holds_it():
    torch.manual_seed(0)
    net = nn.Sequential(*[Keeper(4, 4) for _ in range(2)])
    pipe = pipeline(net, [1], "pipeoptim")
    with pytest.raises(InvariantError, match=r"stage 0 held 3 weight versions .* may hold 2"):
        pipe.train(batches(torch.randn(48, 4), torch.arange(48) % 4, 4))


@pytest.mark.parametrize(("rule", "D", "N"), fitting_cases(stages=(1, 4), microbatches=(1, 4)))
def test_methods_with_recomputation_hold_no_more_versions_than_they_declare(rule, D, N):
    method, schedule = METHODS[rule]
    pipe = train(method, schedule, D, N, recompute=range(D))
    for stage, held in zip(pipe.stages, pipe.reports("weight_versions_max"), strict=True):
        assert held <= method.weight_versions(StageContext.under(schedule, stage.index, D, N))


def test_staleness_is_the_updates_between_reading_and_applying():
    audit = Measurements()
    audit.forward, audit.backward = {7: [3, 4], 8: [5]}, {7: [7, 7], 8: [8]}
    audit.settle(7, newest=7, steady=False)
    assert (audit.forward_staleness, audit.backward_staleness) == (set(), set())
    audit.forward[7], audit.backward[7] = [3, 4], [7, 7]
    audit.settle(7, newest=7, steady=True)
    audit.settle(8, newest=8, steady=True)
    assert (audit.forward_staleness, audit.backward_staleness) == ({3, 4}, {0})
    assert audit.forward == audit.backward == {}
