"""Lists put together from short ones equal, item by item, those that a schedule and a method make as a whole."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.methods import METHODS, fitting

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors import pipeline_rules
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.hogwild import Hogwild
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.program import repeating_list
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.program.repeating_list import RepeatingList, pattern, repeating, where
from pipetrain.engine.program.steady_state import peak_of_messages
from pipetrain.engine.schedules import Kind
from pipetrain.engine.schedules.interleaved import InterleavedContinuous1F1B
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneBFlush
from pipetrain.engine.schedules.one_f_one_b_v import OneFOneBV
from pipetrain.engine.schedules.replicas import Replicas
from pipetrain.engine.schedules.round_robin import RoundRobin


def whole(rules, what, *of):
    """Result of a method of `rules` where every list is made as a whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeating_list, "_WHOLE", math.inf)
        return list(getattr(PipelineRules(*rules), what)(*of))


def found(rules, what, *of):
    """Result of a method of `rules` where lists are put together from short ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeating_list, "_WHOLE", 0)
        return getattr(PipelineRules(*rules), what)(*of)


@settings(max_examples=80)
@given(data=st.data(), name=st.sampled_from([*METHODS]), D=st.integers(1, 6), N=st.integers(1, 8))
def test_lists_of_any_length_and_their_reads_are_those_made_as_a_whole(data, name, D, N):
    (method, schedule), segments = METHODS[name], None
    if fitting(name, D, N) and data.draw(st.booleans(), "recomputes"):
        segments = RecomputeSegments.of_single_stages(D)
    counts = data.draw(st.one_of(st.none(), st.lists(st.integers(1, 3), min_size=D, max_size=D)), "replicas")
    rules = RoundRobin(schedule, Replicas(tuple(counts))) if counts else schedule, method, D, N, segments
    try:
        made = PipelineRules(*rules)
    except ConfigError:
        return
    period = math.lcm(*made.replicas.counts)
    minibatches = 8 * (made.steady + period) + data.draw(st.integers(1, 2 * period), "further minibatches")
    start = data.draw(st.sampled_from([0, 17]), "start")
    for worker in range(made.replicas.num_workers):
        planned, expected = (which(rules, "planned", worker, minibatches, start) for which in (found, whole))
        assert isinstance(planned, RepeatingList)
        assert [*planned] == expected
        assert [planned[i] for i in range(len(planned))] == expected
        assert planned[3:-2] == expected[3:-2]
        operations, expected = (which(rules, "worker_list", worker, minibatches) for which in (found, whole))
        assert [*operations] == expected
        backwards = where(operations, lambda op: op.kind is Kind.BACKWARD)
        assert [*backwards] == [op for op in expected if op.kind is Kind.BACKWARD]
        for kind in (Kind.FORWARD, Kind.BACKWARD):
            assert peak_of_messages(pattern(operations), N, kind) == peak_of_messages(expected, N, kind)


@pytest.mark.parametrize("schedule", [OneFOneBV(), OneFOneBV([3, 3, 2]), InterleavedContinuous1F1B()], ids=repr)
def test_orders_of_processes_repeat_as_their_lists_do(schedule):
    rules = schedule, NaiveAsync(), 6, 6
    for process in range(3):
        order = found(rules, "order", process, 131)
        assert isinstance(order, RepeatingList)
        assert [*order] == whole(rules, "order", process, 131)


@pytest.mark.parametrize(("schedule", "method", "N"), [(OneFOneBFlush(), "gpipe", 64), (OneFOneB(), "pipedream", 1)])
def test_work_of_a_long_epoch_is_that_of_a_few_minibatches(monkeypatch, schedule, method, N):
    made = []
    plan = pipeline_rules.planned_operations

    def counted(context, operations, *others):
        made.append(len(operations))
        return plan(context, operations, *others)

    monkeypatch.setattr(pipeline_rules, "planned_operations", counted)
    rules = PipelineRules(schedule, METHODS[method].method, 8, N)
    for minibatches in (10_000, 10_000_000):
        made.clear()
        planned = rules.planned(1, minibatches)
        assert len(planned) == minibatches * (2 * N + 1)
        assert sum(made) < 60 * (2 * N + 1)
    assert str(planned[-1].operation) == "U9999999"


class Odd(OneFOneB):
    """A user's schedule, which drains once before minibatch 500."""

    def operations(self, r, D, N, M):
        rest = super().operations(r, D, N, max(0, M - 500))
        return [*super().operations(r, D, N, min(500, M)), *(op.moved(500) for op in rest)]


@pytest.mark.parametrize(
    ("schedule", "method"),
    [(Odd(), PipeDream()), (RoundRobin(Odd(), Replicas((2, 2))), PipeDream()), (OneFOneB(), Hogwild(seed=3))],
    ids=["schedule", "replicas", "random"],
)
def test_lists_that_may_change_far_from_a_drain_are_made_as_a_whole(schedule, method):
    rules = PipelineRules(schedule, method, 2, 1)
    assert [*rules.worker_list(0, 2000)] == schedule.of_worker(0, 2, 1, 2000)
    assert isinstance(rules.planned(0, 2000), list)


def test_list_that_does_not_repeat_is_made_as_a_whole():
    asked = []

    def make(minibatches):
        asked.append(minibatches)
        return [minibatches * i for i in range(minibatches)]

    assert repeating(make, 1000, 4, 1, lambda item, turns: item + turns) == [1000 * i for i in range(1000)]
    assert asked == [4, 5, 6, 1000]
