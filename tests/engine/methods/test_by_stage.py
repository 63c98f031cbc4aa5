"""Learning rates divided by the delay of each stage."""

from dataclasses import replace

import pytest
from support import reference
from support.against_reference import assert_close, run_by_hand, run_pipeline
from support.methods import METHODS, MethodCase
from support.pipelines import difference
from support.quick_cases import FEW

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.delayed import Delayed
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.methods.pipemare import PipeMare
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.pipelined_backprop import PipeMareSchedule
from pipetrain.engine.schedules.replicas import Replicas
from pipetrain.engine.schedules.round_robin import RoundRobin

ALIKE = MethodCase(NaiveAsync(), PipeMareSchedule())


def delays(case, D, N):
    """τ of each stage."""
    rules = PipelineRules(case.schedule, case.method, D, N)
    rules.divide_rates_by_delay(10)
    return [context.rate_delay for context in rules.contexts]


@pytest.mark.parametrize(("D", "N"), FEW)
@pytest.mark.parametrize("rule", ["naive_async", "pipedream", "vertical_sync", "timeprest", "pipeoptim_backprop"])
def test_rates_by_delay_equal_the_reference(rule, D, N):
    ours = run_pipeline(rule, D, N, lr_by_delay=7)
    theirs = run_by_hand(replace(reference.FORMULAS[rule], by_delay=7), D, N)
    assert_close(ours, theirs)
    if D > N + 1:
        assert difference(theirs[1], run_by_hand(rule, D, N)[1]) > 1e-4


@pytest.mark.parametrize(("D", "N"), FEW)
def test_rates_by_delay_are_those_of_pipemare_under_its_schedule(D, N):
    plain = run_pipeline(ALIKE, D, N, lr_by_delay=7)
    assert plain[0] == run_pipeline("pipemare_t1", D, N)[0]
    assert difference(plain[1], run_pipeline("pipemare_t1", D, N)[1]) == 0.0


@pytest.mark.parametrize("counts", [(2, 2), (3, 1), (1, 2), (2, 3, 1)])
@pytest.mark.parametrize("N", [1, 2])
def test_rates_by_delay_of_replicas_are_those_of_pipemare(counts, N):
    schedule = RoundRobin(PipeMareSchedule(), Replicas(counts))
    pipemare = PipelineRules(schedule, PipeMare(anneal_steps=7), len(counts), N)
    plain = PipelineRules(schedule, NaiveAsync(), len(counts), N)
    plain.divide_rates_by_delay(7)
    for one, other in zip(pipemare.contexts, plain.contexts, strict=True):
        for k in range(9):
            expected = pipemare.method.learning_rate_scale(one, k) * one.rate_factor(k)
            assert other.rate_factor(k) == expected


def test_delay_of_rates_is_the_staleness_of_forwards():
    assert delays(METHODS["pipedream"], 4, 1) == [3, 2, 1, 1]
    assert delays(METHODS["vertical_sync"], 4, 1) == [3, 3, 3, 3]
    assert delays(METHODS["pipedream_2bw"], 4, 4) == [1, 1, 1, 1]
    assert delays(MethodCase(Delayed([5, 0]), OneFOneB(depth=1)), 2, 1) == [5, 1]
    assert delays(METHODS["gpipe"], 4, 2) == [1, 1, 1, 1]
