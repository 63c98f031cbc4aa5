"""Linear weight prediction against a reference by hand, and in both executors."""

import pytest
import torch
from support import reference
from support.against_reference import assert_close, run_by_hand, run_pipeline
from support.methods import METHODS, MethodCase
from support.pipelines import batches, pipeline, trained
from support.quick_cases import GRID
from torch import nn

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.lwp import LinearWeightPrediction
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop

LWP = MethodCase(LinearWeightPrediction(), OneFOneB())
STASH = METHODS["lwp_stash"]
CYCLE = MethodCase(LinearWeightPrediction(stash=True), PipelinedBackprop())


def test_lwp_holds_one_prediction_where_stale_and_has_the_staleness_of_1f1b():
    pipe = pipeline(nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]), [1, 2, 3], LWP)
    pipe.train(batches(torch.randn(40, 4), torch.randint(0, 4, (40,)), 4))
    assert pipe.reports("weight_versions_max") == [2, 2, 2, 1]
    assert [stage.weights.statistic is None for stage in pipe.stages] == [False, False, False, True]
    assert pipe.reports("forward_staleness") == [[3], [2], [1], [0]]


@pytest.mark.parametrize(("first", "then"), [("pipemare", LWP), (LWP, "pipemare")])
def test_lwp_and_pipemare_do_not_go_on_from_the_statistic_of_each_other(first, then):
    stage, case = trained(first).stages[0], MethodCase.named(then)
    stage.resume_at(stage.updates, stage.statistics)
    context = PipelineRules(case.schedule, case.method, 3, 1).contexts[0]
    stage.enter(case.method, context, 0, fresh=False, predicts=False)
    assert not any(change.any() for change in stage.weights.statistic.average.values())


# -- stashed predictions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "in_flight", "recompute"),
    [
        (LWP, reference.one_f_one_b, False),  # recomputes with the newest weights
        *((STASH, reference.one_f_one_b, recompute) for recompute in (False, True)),
        *((CYCLE, reference.pipelined_backprop, recompute) for recompute in (False, True)),
    ],
)
@pytest.mark.parametrize(("D", "N"), GRID)
def test_lwp_equals_the_reference(case, in_flight, recompute, D, N):
    formulas = reference.Formulas(in_flight, extrapolates=True, stashes=case.method.stash)
    theirs = run_by_hand(formulas, D, N, "adamw")
    ours = run_pipeline(case, D, N, "adamw", recompute=range(D) if recompute else None)
    assert_close(ours, theirs, 1e-9)


@pytest.mark.parametrize(("D", "N"), [(1, 1), (4, 1), (5, 3), (6, 2)])
def test_stashed_lwp_declares_what_its_backwards_wait_for(D, N):
    delays = [[max(0, -(-(D - 1 - r - j) // N)) for j in range(N)] for r in range(D)]
    contexts = PipelineRules(STASH.schedule, STASH.method, D, N).contexts
    declared = [STASH.method.weight_versions(context) for context in contexts]
    assert declared == [max(each) * (1 if N == 1 else 2) + 2 if max(each) else 1 for each in delays]


def test_stashed_lwp_reaches_its_limit_with_microbatches():
    assert trained(STASH, 6, 3).reports("weight_versions_max")[0] == 6
