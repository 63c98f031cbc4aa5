"""A schedule and a method that go together, room for recomputation, and what ran held against their formulas."""

import math
from contextlib import nullcontext

import pytest
from support.methods import METHODS, MethodCase
from support.pipelines import trained
from typing_extensions import override

from pipetrain.engine.errors import ConfigError, InvariantError
from pipetrain.engine.executors import pipeline_rules
from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods import Method
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.methods.timeprest import TiMePReSt
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.program.weight_reads import StageContext, WeightRead
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.nf1b import NF1B
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneBFlush
from pipetrain.engine.schedules.pipelined_backprop import PipeMareSchedule
from pipetrain.engine.weights.transforms import Predicted


@pytest.mark.parametrize(
    ("schedule", "method", "rooms"),
    [
        (GPipe(), Synchronous(), [math.inf] * 3),
        (OneFOneB(), NaiveAsync(), [2, 1, 0]),
        (PipeMareSchedule(), NaiveAsync(), [5, 3, 1]),
        (NF1B(), TiMePReSt(), [0, 0, 0]),
    ],
)
def test_room_for_early_recomputation_follows_in_flight_count(schedule, method, rooms):
    for segments in (RecomputeSegments((0,), 3), RecomputeSegments((0, 1), 3), RecomputeSegments((0, 2), 3)):
        late = [r for r in range(3) if segments.lead(r) > rooms[r]]
        refused = pytest.raises(ConfigError, match=rf"stage {late[0]} would") if late else nullcontext()
        with refused:
            PipelineRules(schedule, method, 3, 2, segments)


@pytest.mark.parametrize("rule", ["pipemare", "stale", "gpipe", "pipedream_flush", "sequential"])
def test_segments_fit_with_enough_in_flight_or_one_version(rule):
    method, schedule = METHODS[rule]
    for firsts in ((0,), (0, 2), (0, 1)):
        PipelineRules(schedule, method, 4, 4, RecomputeSegments(firsts, 4)).lists(3)


@pytest.mark.parametrize(("method", "N"), [(PipeDream(), 1), (Synchronous(), 4)])
def test_number_of_operations_validated_grows_linearly_with_depth(monkeypatch, method, N):
    def operations(D):
        rules, made = PipelineRules(OneFOneBFlush() if N > 1 else OneFOneB(), method, D, N), []
        monkeypatch.setattr(pipeline_rules, "validate", lambda lists, *_: made.extend(map(len, lists)))
        rules.check_lists()
        assert len(made) == D
        return sum(made)

    assert operations(512) == 4 * operations(128)


def broken_invariant(case, **settings):
    with pytest.raises(InvariantError) as caught:
        trained(case, **settings)
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
def test_method_reading_other_versions_than_formula_is_an_error(kind, lie):
    message = broken_invariant(
        MethodCase(Whimsical(kind, lie), OneFOneB()), recompute=range(3) if kind == "R" else None
    )
    stage, operation, read = message.split()[1].rstrip(":"), message.split()[2], message.split()[4]
    assert operation.startswith(kind)
    assert read == str(lie(3))
    assert message == (
        f"stage {stage}: {operation} reads {read} after 3 updates, and by the formulas of 1f1b and whimsical it reads "
        "v3 after 3"
    )


class Late(OneFOneB):
    """Says that it is 1F1B, and holds as much as PipeMare's schedule."""

    def operations(self, r, D, N, M):
        return PipeMareSchedule().operations(r, D, N, M)


@pytest.mark.parametrize("N", [1, 3])
def test_schedule_lists_differing_from_formulas_are_an_error(N):
    assert "by the formulas of 1f1b and naive_async" in broken_invariant(MethodCase(NaiveAsync(), Late()), N=N)


class Optimistic(NF1B):
    """Says that forwards find newer weights than they do."""

    def newest_at_forward(self, r, D, N, t, j):
        return max(0, super().newest_at_forward(r, D, N, t, j) + (t > 4))


def test_schedule_formula_wrong_from_later_minibatch_is_an_error():
    assert "F5.0" in broken_invariant(MethodCase(TiMePReSt(), Optimistic()), N=2)
