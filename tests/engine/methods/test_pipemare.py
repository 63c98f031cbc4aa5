"""PipeMare: its corrections, its learning rates, its average of updates."""

import math
from dataclasses import replace

import pytest
from support.moments import CONTEXT

from pipetrain.engine.methods.pipemare import PipeMare
from pipetrain.engine.program.weight_reads import ReadContext, WeightRead
from pipetrain.engine.schedules.operation import Kind, forward
from pipetrain.engine.weights.transforms import Corrected


@pytest.mark.parametrize(
    ("lead", "N", "corrected"), [(0, 1, 5), (2, 1, 3), (4, 1, 1), (0, 2, 3), (2, 2, 2), (4, 2, 1), (4, 5, None)]
)
def test_early_recomputation_is_corrected_by_fewer_steps(lead, N, corrected):
    context = replace(CONTEXT, num_microbatches=N)
    at = ReadContext(
        context, forward(4).like(Kind.RECOMPUTATION), 3, 1, updates_until_backward=2, minibatch_of_run=4, lead=lead
    )
    assert PipeMare().recomputation(at, WeightRead(2)) == WeightRead(3, Corrected(corrected) if corrected else None)


@pytest.mark.parametrize(
    ("update", "scale"), [(0, 1 / 5), (1, 5 ** -(6 / 7)), (3, 5 ** -(4 / 7)), (6, 5 ** -(1 / 7)), (7, 1.0), (99, 1.0)]
)
def test_t1_divides_rate_by_fading_power_of_delay(update, scale):
    assert PipeMare(anneal_steps=7).learning_rate_scale(CONTEXT, update) == pytest.approx(scale)
    assert PipeMare(t1=False, anneal_steps=7).learning_rate_scale(CONTEXT, update) == 1.0


@pytest.mark.parametrize("N", [1, 2, 4])
def test_average_of_t2_decays_by_its_setting_over_one_delay(N):
    context = replace(CONTEXT, num_microbatches=N)
    tau = math.ceil(5 / N)
    assert PipeMare(decay=0.1).statistic(context, {}).decay ** tau == pytest.approx(0.1)
    assert PipeMare(t2=False).statistic(context, {}) is None
