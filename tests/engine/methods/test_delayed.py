"""A chosen delay: in both executors, against methods that have the same delay, and refused where it cannot be."""

import pytest
from support.equal_bits import bits, both_ways, same_resumed
from support.methods import MethodCase
from support.worker_pool import job, simulated

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.delayed import Delayed
from pipetrain.engine.program.weight_reads import StageContext
from pipetrain.engine.schedules.one_f_one_b import OneFOneB

ALONE = OneFOneB(depth=1)


@pytest.mark.slow
@pytest.mark.parametrize(("delay", "method"), [(0, "sequential"), ([2, 1, 0], "pipedream"), (1, "pipedream_2bw")])
def test_delayed_equals_the_method_that_has_its_delay(tmp_path, delay, method):
    microbatches = {"train": {"microbatches": 4 if method == "pipedream_2bw" else 1}}
    delayed = simulated(job(tmp_path / "delayed", MethodCase(Delayed(delay), ALONE), 3, **microbatches))
    assert bits(delayed) == bits(simulated(job(tmp_path / method, method, 3, **microbatches)))


def test_delayed_has_equal_bits_in_both_executors(tmp_path):
    case, train = MethodCase(Delayed([3, 1]), ALONE), {"microbatches": 2}
    both_ways([job(tmp_path, case, 2, train=train)])


def test_delayed_run_resumed_has_the_bits_of_the_whole(tmp_path):
    case, epochs = MethodCase(Delayed(4), ALONE), {"train": {"epochs": 2}, "checkpoint": {"every_epochs": 1}}
    same_resumed(tmp_path, case, 2, **epochs)


def test_plan_may_have_other_stages_than_there_are_delays():
    assert [Delayed([3, 1]).weight_versions(StageContext(r, 4, 1, 0, 0)) for r in range(4)] == [4, 2, 2, 2]


@pytest.mark.parametrize("N", [1, 2])
@pytest.mark.parametrize("delay", [0, 2])
def test_delayed_holds_as_many_versions_as_it_declares(tmp_path, delay, N):
    method = Delayed(delay)
    summary = simulated(job(tmp_path, MethodCase(method, ALONE), 2, train={"microbatches": N, "epochs": 1}))
    declared = [method.weight_versions(StageContext.under(ALONE, r, 2, N)) for r in range(2)]
    assert declared == [delay + 1] * 2
    assert [stage["weight_versions_max"] for stage in summary["per_stage"]] == declared
    assert [stage["backward_staleness"] for stage in summary["per_stage"]] == [[delay]] * 2


@pytest.mark.parametrize("delay", [-1, 1.5, "3", None, [], [1, -2], True])
def test_delay_that_is_no_number_of_updates_is_refused(delay):
    with pytest.raises(ConfigError, match=r"method\.delay"):
        Delayed(delay)


@pytest.mark.parametrize("delays", [[1, 2], [1, 2, 3, 4]])
def test_delays_of_wrong_length_are_refused(delays):
    with pytest.raises(ConfigError, match=r"method\.delay"):
        PipelineRules(ALONE, Delayed(delays), 3, 1)
