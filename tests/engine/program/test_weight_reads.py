"""What a method is asked, and what it answers."""

import pytest

from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.program.weight_reads import StageContext, WeightRead, closed_form_context, query_method
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.operation import backward, forward


def test_backward_cannot_be_asked_before_its_forward():
    context = StageContext.under(OneFOneB(), 1, 3, 1)
    at = closed_form_context(OneFOneB(), context, backward(2))
    assert query_method(PipeDream(), at, WeightRead(1)) == WeightRead(1)
    with pytest.raises(AssertionError, match=r"B2\.0 before its forward"):
        query_method(PipeDream(), at, None)


def test_closed_form_moment_counts_minibatches_from_run_start():
    context = StageContext.under(OneFOneB(), 0, 3, 1)
    at = closed_form_context(OneFOneB(), context, forward(4), start=100)
    assert (at.operation.minibatch, at.minibatch_of_run) == (4, 104)
    assert (at.newest, at.updates_until_backward) == (2, 2)
