"""A chosen delay: against methods that have the same delay, and refused where it cannot be."""

import pytest
from support.methods import MethodCase
from support.pipelines import difference, trained

from pipetrain.engine.methods.delayed import Delayed
from pipetrain.engine.program.weight_reads import StageContext
from pipetrain.engine.schedules.one_f_one_b import OneFOneB

ALONE = OneFOneB(depth=1)


@pytest.mark.parametrize(
    ("delay", "method", "N"), [(0, "sequential", 1), ([2, 1, 0], "pipedream", 1), (1, "pipedream_2bw", 4)]
)
def test_delayed_equals_the_method_that_has_its_delay(delay, method, N):
    delayed, other = (trained(case, 3, N) for case in (MethodCase(Delayed(delay), ALONE), method))
    assert delayed.losses == other.losses
    assert difference(delayed.state(), other.state()) == 0


def test_plan_may_have_other_stages_than_there_are_delays():
    assert [Delayed([3, 1]).weight_versions(StageContext(r, 4, 1, 0, 0)) for r in range(4)] == [4, 2, 2, 2]


@pytest.mark.parametrize("N", [1, 2])
@pytest.mark.parametrize("delay", [0, 2])
def test_delayed_holds_as_many_versions_as_it_declares(delay, N):
    method = Delayed(delay)
    pipe = trained(MethodCase(method, ALONE), 2, N)
    declared = [method.weight_versions(StageContext.under(ALONE, r, 2, N)) for r in range(2)]
    assert declared == pipe.reports("weight_versions_max") == [delay + 1] * 2
    assert pipe.reports("backward_staleness") == [[delay]] * 2
