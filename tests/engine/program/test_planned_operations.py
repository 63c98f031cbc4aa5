"""Which versions operations read, against the specification's worked example and closed forms."""

from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import reference
from support.methods import ASYNCHRONOUS, METHODS, fitting
from support.refusals import assert_refused

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.base import Method
from pipetrain.engine.methods.i_timeprest import ITiMePReSt
from pipetrain.engine.methods.naive_async import NaiveAsync
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.methods.pipemare import PipeMare
from pipetrain.engine.methods.pipeoptim import PipeOptim
from pipetrain.engine.methods.spectrain import SpecTrain
from pipetrain.engine.methods.stale import Stale
from pipetrain.engine.methods.synchronous import Synchronous
from pipetrain.engine.methods.timeprest import TiMePReSt, VTiMePReSt
from pipetrain.engine.program.planned_operations import Activations, rebinds_weights
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.program.weight_reads import WeightRead, WeightTransform
from pipetrain.engine.schedules.base import Family
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.nf1b import NF1B
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneBFlush
from pipetrain.engine.schedules.operation import Kind, backward, forward
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop, PipeMareSchedule
from pipetrain.engine.schedules.sequential import Sequential

QUICK = settings(max_examples=40)
asynchronous_rules = st.sampled_from(ASYNCHRONOUS)


def planned_stages(method, schedule, D, N=1, M=8, segments=None):
    """Of each stage: operation -> the operation as it is planned, in the order of the list."""
    rules = PipelineRules(schedule, method, D, N, segments)
    return [{planned.operation: planned for planned in rules.planned(r, M)} for r in range(D)]


@dataclass(frozen=True)
class Predicting(WeightTransform):
    """A transform that is not stashed."""

    steps: int

    def __str__(self):
        return f"+{self.steps}"


class PredictingBothPasses(Method):
    """Forward and backward of a minibatch read the newest weights, changed alike."""

    name = "predicting_both_passes"
    family = Family.WHOLE_BACKWARD

    def forward(self, at):
        return WeightRead(at.newest, Predicting(1))

    def backward(self, at, _forward):
        return WeightRead(at.newest, Predicting(1))

    def weight_versions(self, _context):
        return 3


@pytest.mark.parametrize("N", [1, 2, 3])
def test_backward_of_a_minibatch_treats_its_microbatches_alike(N):
    """The last of several forwards is followed by it at once, the others are not."""
    for stage in planned_stages(PredictingBothPasses(), NF1B(), 2, N):
        for planned in stage.values():
            if planned.operation.kind is Kind.BACKWARD:
                t = planned.operation.minibatch
                made = {stage[forward(t, j)].activations for j in range(N)}
                assert made == {planned.activations}
                assert N == 1 or made == {Activations.REBOUND}


def read_by(stage, operation):
    return stage[operation].read


def backward_of(stage, t, j):
    """The operation that takes a microbatch back: its own, or that of the whole minibatch."""
    return next(op for op in (backward(t, j), backward(t, None)) if op in stage)


class ByIdentity(WeightTransform):
    def __str__(self):
        return "~"


@dataclass
class Unhashable(ByIdentity): ...


@dataclass(frozen=True)
class NotInheriting:
    passes, stashed = 3, False


@pytest.mark.parametrize("transform", [ByIdentity, Unhashable, NotInheriting])
def test_transform_of_another_kind_of_class_is_refused_by_name(transform):
    class Own(NaiveAsync):
        def forward(self, at):
            return WeightRead(at.newest, transform())

    assert_refused(rf"method: Own .* {transform.__name__}, .* frozen dataclass", planned_stages, Own(), OneFOneB(), 2)


@pytest.mark.parametrize(
    ("method", "schedule", "row"),
    [
        (Synchronous(), GPipe(), ["v4/v4", "v4/v4", "v4/v4", "v4/v4"]),
        (Synchronous(), OneFOneBFlush(), ["v4/v4", "v4/v4", "v4/v4", "v4/v4"]),
        (Synchronous(), Sequential(), ["v4/v4", "v4/v4", "v4/v4", "v4/v4"]),
        (PipeDream(), OneFOneB(), ["v1/v1", "v2/v2", "v3/v3", "v4/v4"]),
        (PipeDream(vertical_sync=True), OneFOneB(), ["v1/v1", "v1/v1", "v1/v1", "v1/v1"]),
        (PipeOptim(), OneFOneB(), ["v1+3/v4", "v2+2/v4", "v3+1/v4", "v4/v4"]),
        (SpecTrain(), OneFOneB(), ["v1+3/v4", "v2+2/v4", "v3+2/v4+1", "v4+1/v4+1"]),
        (NaiveAsync(), OneFOneB(), ["v1/v4", "v2/v4", "v3/v4", "v4/v4"]),
        (Stale(), PipelinedBackprop(), ["v0/v4", "v0/v4", "v2/v4", "v4/v4"]),
        (PipeMare(t2=False), PipeMareSchedule(), ["v0/v4", "v0/v4", "v1/v4", "v3/v4"]),
        (PipeMare(), PipeMareSchedule(), ["v0/v4-7δ", "v0/v4-5δ", "v1/v4-3δ", "v3/v4-1δ"]),
        (PipeDream(), PipeMareSchedule(), ["v0/v0", "v0/v0", "v1/v1", "v3/v3"]),
        (PipeOptim(), PipelinedBackprop(), ["v0+4/v4", "v0+4/v4", "v2+2/v4", "v4/v4"]),
    ],
    ids=[
        *("gpipe", "1f1b_flush", "sequential", "pipedream", "vertical sync", "pipeoptim", "spectrain", "naive_async"),
        *("stale", "pipemare without t2", "pipemare", "pipedream as pipemare", "pipeoptim as stale"),
    ],
)
def test_reads_of_minibatch_5_on_4_stages_match_worked_example(method, schedule, row):
    found = planned_stages(method, schedule, 4)
    assert [f"{read_by(f, forward(4))}/{read_by(f, backward(4))}" for f in found] == row


@pytest.mark.parametrize("N", [1, 2, 5])
@pytest.mark.parametrize(
    ("method", "row"),
    [
        (TiMePReSt(), ["v1/v4", "v1/v4", "v1/v4", "v1/v4"]),
        (VTiMePReSt(), ["v1/v4", "v2/v4", "v3/v4", "v4/v4"]),
        (ITiMePReSt(0.1), ["v1/v1*0.6501", "v2/v2*0.7786", "v3/v3*0.8948", "v4/v4"]),
    ],
    ids=["timeprest", "v_timeprest", "i_timeprest"],
)
def test_weight_reads_under_nf1b_are_those_of_the_worked_example(method, row, N):
    found = planned_stages(method, NF1B(), 4, N)
    for j in range(N):
        assert [f"{read_by(f, forward(4, j))}/{read_by(f, backward(4, None))}" for f in found] == row


@QUICK
@given(asynchronous_rules, st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_asynchronous_methods_read_versions_of_their_formulas(rule, D, N, M):
    assume(fitting(rule, D, N))
    stashed = reference.FORMULAS[rule].stashes
    for r, found in enumerate(planned_stages(*METHODS[rule], D, N, M)):
        for t in range(M):
            for j in range(N):
                in_forward = reference.FORMULAS[rule].version_of_forward(t, j, N, D, r)
                assert read_by(found, forward(t, j)).version == in_forward
                assert read_by(found, backward_of(found, t, j)).version == (in_forward if stashed else t)


@QUICK
@given(asynchronous_rules, st.integers(1, 6), st.integers(1, 6), st.integers(1, 8))
def test_versions_are_released_updated_and_rebound_where_their_readers_are(rule, D, N, M):
    assume(fitting(rule, D, N))
    for found in planned_stages(*METHODS[rule], D, N, M):
        check_that_the_last_reader_alone_releases(found)
        check_that_backwards_keep_activations_only_with_the_read_of_their_forward(found, N, M)
        for op, planned in found.items():
            if op.kind is Kind.UPDATE:
                assert (str(planned.read), planned.activations) == (f"v{op.minibatch}", Activations.DROPPED)


def check_that_the_last_reader_alone_releases(found):
    readers = {}
    for index, planned in enumerate(found.values()):
        read = planned.read
        stashed = read.transform is not None and read.transform.stashed
        made_before = stashed and planned.operation.kind is not Kind.FORWARD
        readers.setdefault(read if made_before else read.version, []).append(index)
    releasing = [index for index, planned in enumerate(found.values()) if planned.releases]
    assert releasing == sorted(max(indices) for indices in readers.values())


def check_that_backwards_keep_activations_only_with_the_read_of_their_forward(found, N, M):
    activations = {op: planned.activations for op, planned in found.items()}
    for t, j in product(range(M), range(N)):
        there, back = forward(t, j), backward_of(found, t, j)
        assert activations[there] is activations[back]
        if read_by(found, there) != read_by(found, back):
            assert activations[back] is Activations.REBOUND
        elif read_by(found, back).transform is None:
            assert activations[back] is Activations.KEPT
    assert rebinds_weights(found.values()) == (Activations.REBOUND in activations.values())


@QUICK
@given(asynchronous_rules, st.integers(1, 6), st.integers(1, 6), st.integers(1, 8))
def test_recomputation_drops_forwards_feeds_backwards_and_reads_specified_weights(rule, D, N, M):
    assume(fitting(rule, D, N))
    formulas = reference.FORMULAS[rule]
    for found in planned_stages(*METHODS[rule], D, N, M, RecomputeSegments.of_single_stages(D)):
        activations = {op: planned.activations for op, planned in found.items()}
        for op in found:
            if op.kind is Kind.FORWARD:
                assert activations[op] is Activations.DROPPED
            if op.kind is Kind.BACKWARD:
                again, back = op.like(Kind.RECOMPUTATION), read_by(found, op)
                same = read_by(found, again) == back
                assert activations[op] is activations[again] is (Activations.KEPT if same else Activations.REBOUND)
                assert same == (formulas.shrinkage is None or back.transform is None)
                in_forward = read_by(found, forward(op.minibatch, op.microbatch or 0))
                assert read_by(found, again) == (in_forward if formulas.stashes else back)


@QUICK
@given(st.sampled_from(["pipemare", "stale", "pipeoptim_backprop", "pipedream_pipemare"]), st.data())
def test_segment_recomputation_reads_current_weights(rule, data):
    D, N, M = (data.draw(st.integers(1, most)) for most in (8, 5, 12))
    firsts = tuple(sorted({0, *data.draw(st.lists(st.integers(0, D - 1)))}))
    for r, found in enumerate(planned_stages(*METHODS[rule], D, N, M, RecomputeSegments(firsts, D))):
        lead, tau = reference.lead(firsts, D, r), reference.delay(N, D, r)
        for op in found:
            if op.kind is Kind.RECOMPUTATION:
                k, read = op.minibatch * N + op.microbatch, read_by(found, op)
                if rule == "pipedream_pipemare":
                    assert read == read_by(found, forward(op.minibatch, op.microbatch))
                    continue
                assert read.version == max(0, (k - lead) // N)
                steps = tau - -(-lead // N) if rule == "pipemare" else 0
                assert str(read.transform or "") == (f"-{steps}δ" if steps else "")


@QUICK
@given(st.one_of(st.none(), st.integers(1, 12)), st.integers(1, 8), st.integers(1, 5), st.integers(1, 16))
def test_steady_state_begins_without_reads_of_drained_version(depth, D, N, M):
    schedule = OneFOneB(depth)
    delays = [schedule.in_flight(r, D, N) - 1 for r in range(D)]
    unclipped = [t for t in range(M) if all(t * N >= d for d in delays)]
    steady = PipelineRules(schedule, NaiveAsync(), D, N).steady
    assert [t for t in range(M) if t >= steady] == unclipped


@pytest.mark.parametrize("D", [1, 2, 5])
def test_steady_state_of_two_buffers_begins_at_minibatch_1(D):
    assert PipelineRules(*METHODS["pipedream_2bw"][::-1], D, max(2, D)).steady == 1
