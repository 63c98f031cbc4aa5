"""Weight versions are held to what the method declares, and staleness is measured while a stage runs."""

import pytest
import torch
from support.methods import METHODS, MethodCase, fitting_cases
from support.pipelines import batches, pipeline, trained
from torch import nn

from pipetrain.errors import InvariantError
from pipetrain.methods.pipedream import PipeDream
from pipetrain.program.weight_reads import StageContext
from pipetrain.schedules.one_f_one_b import OneFOneB
from pipetrain.stage.measurements import Measurements


class Greedy(PipeDream):
    """Stashes what it says it does not."""

    def weight_versions(self, context):
        return 1 if context.stage == 0 else super().weight_versions(context)


def test_more_weight_versions_than_the_method_declares_are_an_error():
    with pytest.raises(InvariantError, match=r"^stage 0 held 2 weight versions .* its method may hold 1$"):
        trained(MethodCase(Greedy(), OneFOneB()))


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


@pytest.mark.parametrize(("rule", "D", "N"), fitting_cases(stages=(4,), microbatches=(1, 4)))
def test_methods_with_recomputation_hold_no_more_versions_than_they_declare(rule, D, N):
    method, schedule = METHODS[rule]
    pipe = trained(METHODS[rule], D, N, recompute=range(D))
    for stage, held in zip(pipe.stages, pipe.reports("weight_versions_max"), strict=True):
        assert held <= method.weight_versions(StageContext.under(schedule, stage.index, D, N))


def test_staleness_is_the_updates_between_reading_and_applying():
    measured = Measurements()
    measured.forward, measured.backward = {7: [3, 4], 8: [5]}, {7: [7, 7], 8: [8]}
    measured.settle(7, newest=7, steady=False)
    assert (measured.forward_staleness, measured.backward_staleness) == (set(), set())
    measured.forward[7], measured.backward[7] = [3, 4], [7, 7]
    measured.settle(7, newest=7, steady=True)
    measured.settle(8, newest=8, steady=True)
    assert (measured.forward_staleness, measured.backward_staleness) == ({3, 4}, {0})
    assert measured.forward == measured.backward == {}
