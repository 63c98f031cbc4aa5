"""Properties of every schedule's lists over many (r, D, N, M), against the formulas of the specification."""

import math
from contextlib import suppress
from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.checked_lists import checked_lists

from pipetrain.engine import schedules as schedules_of_package
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.program.recomputation import RecomputeSegments
from pipetrain.engine.schedules.alternation import ContinuousOneFOneB
from pipetrain.engine.schedules.base import Family, ListSchedule
from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.looped_bfs import LoopedBFS
from pipetrain.engine.schedules.nf1b import NF1B
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneB2BW, OneFOneBFlush
from pipetrain.engine.schedules.one_f_one_b_v import OneFOneBV
from pipetrain.engine.schedules.operation import Kind
from pipetrain.engine.schedules.pipelined_backprop import PipelinedBackprop, PipeMareSchedule
from pipetrain.engine.schedules.process_lists import ProcessSchedule
from pipetrain.engine.schedules.round_robin import RoundRobin
from pipetrain.engine.schedules.sequential import DataParallel, Sequential
from pipetrain.engine.schedules.zero_bubble import ZBH1, ZBV


def choices():
    """The schedules of the package that need no options, and `1f1b` at further depths."""
    found = {}
    for module in iter_modules(schedules_of_package.__path__, f"{schedules_of_package.__name__}."):
        for name, kind in vars(import_module(module.name)).items():
            own = isinstance(kind, type) and issubclass(kind, ListSchedule) and kind.__module__ == module.name
            if own and not isabstract(kind) and hasattr(kind, "name") and kind is not RoundRobin:
                found[name] = kind()
    yield from (found[name] for name in sorted(found))
    yield OneFOneBV([3, 3, 2])
    yield from (OneFOneB(depth=1), OneFOneB(depth=2), OneFOneB(depth=5), OneFOneB(depth=21))


SCHEDULES = list(choices())
SYNCHRONOUS = [each for each in SCHEDULES if each.synchronous]
CONTINUOUS = [each for each in SCHEDULES if each.family in (Family.CONTINUOUS, Family.DOUBLE_BUFFERED)]
ONE_F_ONE_B = [each for each in CONTINUOUS if isinstance(each, ContinuousOneFOneB)]
ALTERNATING = [*ONE_F_ONE_B, OneFOneBV()]
"""Those under which each stage does a forward and a backward in turn."""
QUICK = settings(max_examples=60)

stages = st.integers(1, 16)
microbatches = st.integers(1, 16)


@st.composite
def cases(draw, which=SCHEDULES, most=(16, 16, 4)):
    """(schedule, D, N, M); one that refuses the drawn D and N has whole processes and rounds of microbatches."""
    schedule, (D, N, M) = draw(st.sampled_from(which)), (draw(st.integers(1, limit)) for limit in most)
    chunks = getattr(schedule, "chunks", 1)
    D = max(1, D // chunks) * chunks
    for sizes in ((D, N), (D, max(D, N)), (D, -(-N * chunks // D) * (D // chunks))):
        with suppress(ConfigError):
            schedule.check(*sizes)
            return schedule, *sizes, M
    return schedule, 1, N, M


@st.composite
def spans(draw, schedule, D, N):
    """Segments that the schedule has room for: null for none, of single stages, or of several."""
    if draw(st.booleans()):
        return draw(st.sampled_from([None, RecomputeSegments.of_single_stages(D)]))
    firsts = {0, *draw(st.lists(st.integers(0, D - 1)))}
    if isinstance(schedule, NF1B | ProcessSchedule):
        firsts = set(range(D))
    found = RecomputeSegments(tuple(sorted(firsts)), D)
    if schedule not in SYNCHRONOUS:
        assume(all(lead_of(found.firsts, D, r) < in_flight_of_the_table(schedule, r, D, N) for r in range(D)))
    return found


def lead_of(firsts, D, r):
    """2(L - 1 - i) microbatch steps for stage i of a segment of L stages."""
    first = max(stage for stage in firsts if stage <= r)
    length = min([stage for stage in firsts if stage > r], default=D) - first
    return 2 * (length - 1 - (r - first))


def in_flight_of_the_table(schedule, r, D, N):
    later = D - 1 - r
    table = {
        Sequential: 1,
        DataParallel: 1,
        GPipe: N,
        OneFOneBFlush: min(N, D - r),
        LoopedBFS: N,
        ZBH1: min(N, D - r),
        ZBV: min(N, D - r),
        OneFOneBV: math.ceil((2 * later + 1 + (2 if D % 3 == 0 else 0)) / 6),
        NF1B: (D - r) * N,
        OneFOneB2BW: D - r,
        PipeMareSchedule: 2 * later + 2,
        PipelinedBackprop: 2 * later + 1,
    }
    if type(schedule) is OneFOneB:
        depth = D if schedule.depth is None else schedule.depth
        return 1 + ((depth - 1) * later) // (D - 1) if D > 1 else 1
    if isinstance(schedule, OneFOneBV) and schedule != OneFOneBV():
        return schedule.in_flight(r, D, N)
    # a schedule with a formula of its own has a test of its own
    return table[type(schedule)] if type(schedule) in table else schedule.in_flight(r, D, N)


def held_after_each(operations, N):
    held, levels = 0, []
    for op in operations:
        if op.kind is Kind.FORWARD:
            held += 1
        elif op.kind is Kind.BACKWARD:
            held -= N if op.microbatch is None else 1
        levels.append(held)
    return levels


def versions_read(operations):
    """(t, j) -> updates before its forward, and before its backward; j is None for one of the whole minibatch."""
    newest, forwards, backwards = 0, {}, {}
    for op in operations:
        if op.kind is Kind.UPDATE:
            newest += 1
        else:
            table = forwards if op.kind is Kind.FORWARD else backwards
            table[op.minibatch, op.microbatch] = newest
    return forwards, backwards


def each(kind, t, N, schedule):
    """The operations of a kind on the microbatches of a minibatch, as they print."""
    whole = isinstance(schedule, NF1B) and kind != "F"
    return [f"{kind}{t}"] if whole else [f"{kind}{t}.{j}" for j in range(N)]


@QUICK
@given(cases(), st.data())
def test_stages_run_each_operation_once_in_microbatch_order_forward_backward_update(case, data):
    schedule, D, N, M = case
    segments = data.draw(spans(schedule, D, N))
    kinds = ("FB" if segments is None else "FRB") + ("W" if schedule.splits_backward else "")
    lists = checked_lists(schedule, D, N, M, segments)
    assert len(lists) == D
    for listed in lists:
        operations = [str(op) for op in listed]
        place = {text: i for i, text in enumerate(operations)}
        assert len(operations) == len(place)
        for kind in kinds:
            done = [str(op) for op in listed if op.kind == kind]
            assert done == [text for t in range(M) for text in each(kind, t, N, schedule)]
        assert [str(op) for op in listed if op.kind is Kind.UPDATE] == [f"U{t}" for t in range(M)]
        for t in range(M):
            for j in range(N):
                order = [each(k, t, N, schedule)[-1 if k != "F" and isinstance(schedule, NF1B) else j] for k in kinds]
                places = [place[text] for text in (*order, f"U{t}")]
                assert places == sorted(places)


@QUICK
@given(cases(most=(8, 8, 1)))
def test_forwards_in_flight_reach_and_never_exceed_formula(case):
    schedule, D, N, _ = case
    for r in range(D):
        expected = in_flight_of_the_table(schedule, r, D, N)
        assert schedule.in_flight(r, D, N) == expected
        enough = -(-expected // N) + 2
        assert max(held_after_each(schedule.operations(r, D, N, enough), N)) == expected


@QUICK
@given(cases(ALTERNATING, most=(8, 4, 1)))
def test_continuous_schedules_stay_filled_until_drain(case):
    schedule, D, N, _ = case
    for r in range(D):
        level = in_flight_of_the_table(schedule, r, D, N)
        operations = schedule.operations(r, D, N, -(-level // N) + 3)
        last_forward = max(i for i, op in enumerate(operations) if op.kind is Kind.FORWARD)
        steady = held_after_each(operations, N)[level - 1 : last_forward + 1]
        assert set(steady) <= {level, level - 1}


# -- recomputation -----------------------------------------------------------------------------------------------------


@QUICK
@given(cases(), st.data())
def test_recomputation_starts_its_lead_before_its_backward(case, data):
    schedule, D, N, M = case
    segments = data.draw(spans(schedule, D, N))
    assume(segments is not None)
    for r, operations in enumerate(checked_lists(schedule, D, N, M, segments)):
        lead, done, before = lead_of(segments.firsts, D, r), 0, {}
        assert segments.lead(r) == lead
        for op in operations:
            if op.kind is Kind.RECOMPUTATION:
                before[op.minibatch, op.microbatch] = done
            if op.kind is Kind.BACKWARD:
                steps = done - before[op.minibatch, op.microbatch]
                # at the beginning there are fewer; a minibatch that drains the pipeline starts anew
                room = min(done, lead) if schedule not in SYNCHRONOUS else min(done % N, lead)
                assert steps == room if schedule not in SYNCHRONOUS else steps <= room
                done += 1


# -- versions ----------------------------------------------------------------------------------------------------------


@QUICK
@given(cases(SYNCHRONOUS))
def test_synchronous_schedules_read_version_t_for_minibatch_t(case):
    schedule, D, N, M = case
    assert schedule.synchronous
    for r in range(D):
        for versions in versions_read(schedule.operations(r, D, N, M)):
            assert all(version == t for (t, _), version in versions.items())


@QUICK
@given(cases(CONTINUOUS, most=(16, 16, 20)))
def test_continuous_schedules_read_closed_form_versions(case):
    check_closed_forms(*case)


def check_closed_forms(schedule, D, N, M):
    assert not schedule.synchronous
    for r in range(D):
        forwards, backwards = versions_read(schedule.operations(r, D, N, M))
        assert all(version == t for (t, _), version in backwards.items())
        assert all(version == schedule.newest_at_forward(r, D, N, t, j) for (t, j), version in forwards.items())
        if schedule in ONE_F_ONE_B:
            d = in_flight_of_the_table(schedule, r, D, N) - 1
            assert all(version == max(0, (t * N + j - d) // N) for (t, j), version in forwards.items())
        steady = [100 - schedule.newest_at_forward(r, D, N, 100, j) for j in range(N)]
        # with two buffers no minibatch reads the version that its gradient changes, however few are in flight
        assert schedule.delay(r, D, N) == (1 if isinstance(schedule, OneFOneB2BW) else max(steady))


@QUICK
@given(stages, microbatches, st.integers(1, 20))
def test_nf1b_reads_one_version_for_a_whole_minibatch(D, N, M):
    schedule = NF1B()
    assert not schedule.synchronous
    for r in range(D):
        forwards, backwards = versions_read(schedule.operations(r, D, N, M))
        assert forwards == {(t, j): max(0, t - (D - 1 - r)) for t in range(M) for j in range(N)}
        assert backwards == {(t, None): t for t in range(M)}
        assert all(schedule.newest_at_forward(r, D, N, t, j) == version for (t, j), version in forwards.items())
        assert schedule.delay(r, D, N) == D - 1 - r


@QUICK
@given(st.integers(1, 8), st.integers(0, 8), st.integers(1, 6))
def test_1f1b_2bw_reads_one_version_for_a_whole_minibatch(D, more, M):
    N = D + more
    for r in range(D):
        forwards, _ = versions_read(OneFOneB2BW().operations(r, D, N, M))
        assert all(version in (t, max(0, t - 1)) for (t, _), version in forwards.items())


def test_operation_lists_at_small_sizes_are_those_of_the_papers():
    def text(schedule, r, D, N, M):
        return " ".join(str(op) for op in schedule.operations(r, D, N, M))

    assert text(Sequential(), 0, 2, 2, 1) == "F0.0 B0.0 F0.1 B0.1 U0"
    assert text(GPipe(), 1, 2, 2, 1) == "F0.0 F0.1 B0.0 B0.1 U0"
    assert text(OneFOneBFlush(), 0, 2, 3, 1) == "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2 U0"
    assert text(OneFOneBFlush(), 1, 2, 3, 1) == "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 U0"
    assert text(OneFOneB(), 0, 2, 1, 3) == "F0.0 F1.0 B0.0 U0 F2.0 B1.0 U1 B2.0 U2"
    assert text(OneFOneB(), 1, 2, 1, 2) == "F0.0 B0.0 U0 F1.0 B1.0 U1"
    assert text(PipelinedBackprop(), 0, 2, 1, 4) == "F0.0 F1.0 F2.0 B0.0 U0 F3.0 B1.0 U1 B2.0 U2 B3.0 U3"
    assert text(PipelinedBackprop(), 1, 2, 1, 2) == "F0.0 B0.0 U0 F1.0 B1.0 U1"
    assert text(PipeMareSchedule(), 1, 2, 1, 3) == "F0.0 F1.0 B0.0 U0 F2.0 B1.0 U1 B2.0 U2"
    assert text(NF1B(), 0, 2, 2, 3) == "F0.0 F0.1 F1.0 F1.1 B0 U0 F2.0 F2.1 B1 U1 B2 U2"
    assert text(NF1B(), 1, 2, 2, 2) == "F0.0 F0.1 B0 U0 F1.0 F1.1 B1 U1"
    assert text(OneFOneB2BW(), 0, 2, 2, 2) == text(OneFOneB(), 0, 2, 2, 2)
    assert text(OneFOneB(), 0, 2, 2, 2) == "F0.0 F0.1 B0.0 F1.0 B0.1 U0 F1.1 B1.0 B1.1 U1"
