"""Linear weight prediction against a reference by hand, and in both executors."""

import pytest
import torch
from support import reference
from support.against_reference import assert_close, run_by_hand, run_pipeline
from support.methods import METHODS, MethodCase
from support.pipelines import batches, difference, pipeline, trained
from torch import nn

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.lwp import LinearWeightPrediction
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop

LWP = MethodCase(LinearWeightPrediction(), OneFOneB())
STASH = METHODS["lwp_stash"]
CYCLE = MethodCase(LinearWeightPrediction(stash=True), PipelinedBackprop())


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

GRID = [
    pytest.param(D, N, marks=[] if (D, N) in ((1, 1), (4, 1), (5, 3)) else pytest.mark.slow)
    for D in range(1, 7)
    for N in range(1, 5)
    if (D, N) == (4, 1) or (D + N) % 2 == 0
]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("case", "in_flight"), [(STASH, reference.one_f_one_b), (CYCLE, reference.pipelined_backprop)])
@pytest.mark.parametrize(("D", "N"), GRID)
def test_stashed_lwp_equals_the_reference(case, in_flight, D, N, recompute):
    formulas = reference.Formulas(in_flight, extrapolates=True, stashes=True)
    theirs = run_by_hand(formulas, D, N, "adamw")
    ours = run_pipeline(case, D, N, "adamw", recompute=range(D) if recompute else None)
    assert_close(ours, theirs, 1e-9)


def test_stashed_lwp_differs_from_plain_and_from_pipedream():
    final = [run_pipeline(case, 4, 1)[1] for case in (STASH, LWP, "pipedream")]
    assert min(difference(final[0], other) for other in final[1:]) > 1e-3


@pytest.mark.parametrize("recompute", [None, range(6)])
@pytest.mark.parametrize(("D", "N"), GRID)
def test_stashed_lwp_holds_what_its_backwards_wait_for(D, N, recompute):
    pipe = trained(STASH, D, N, recompute=recompute and range(D))
    delays = [[max(0, -(-(D - 1 - r - j) // N)) for j in range(N)] for r in range(D)]
    assert pipe.reports("forward_staleness") == pipe.reports("backward_staleness")
    assert pipe.reports("forward_staleness") == [sorted(set(each)) for each in delays]
    allowed = [
        STASH.method.weight_versions(each) for each in PipelineRules(STASH.schedule, STASH.method, D, N).contexts
    ]
    assert allowed == [max(each) * (1 if N == 1 else 2) + 2 if max(each) else 1 for each in delays]
    held = pipe.reports("weight_versions_max")
    assert held == allowed if N == 1 else all(map(int.__le__, held, allowed))


def test_stashed_lwp_reaches_its_limit_with_microbatches():
    assert trained(STASH, 6, 3).reports("weight_versions_max")[0] == 6
