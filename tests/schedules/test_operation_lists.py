"""Properties of every schedule's lists over many (r, D, N, M), against the formulas of the specification."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipetrain.errors import ConfigError
from pipetrain.schedules.gpipe import GPipe
from pipetrain.schedules.one_f_one_b import OneFOneB
from pipetrain.schedules.one_f_one_b_flush import OneFOneBFlush
from pipetrain.schedules.operation import Kind
from pipetrain.schedules.sequential import Sequential
from pipetrain.schedules.validate import checked_lists

SYNCHRONOUS = [Sequential(), GPipe(), OneFOneBFlush()]
SCHEDULES = [*SYNCHRONOUS, OneFOneB(), OneFOneB(depth=1), OneFOneB(depth=2), OneFOneB(depth=5), OneFOneB(depth=21)]
QUICK = settings(max_examples=60, deadline=None)

schedules = st.sampled_from(SCHEDULES)
stages = st.integers(1, 16)
microbatches = st.integers(1, 16)
minibatches = st.integers(1, 4)


def in_flight_of_the_table(schedule, r, D, N):
    if isinstance(schedule, Sequential):
        return 1
    if isinstance(schedule, GPipe):
        return N
    if isinstance(schedule, OneFOneBFlush):
        return min(N, D - r)
    depth = D if schedule.depth is None else schedule.depth
    return 1 + ((depth - 1) * (D - 1 - r)) // (D - 1) if D > 1 else 1


def held_after_each(operations):
    held, levels = 0, []
    for op in operations:
        held += {Kind.FORWARD: 1, Kind.BACKWARD: -1, Kind.UPDATE: 0}[op.kind]
        levels.append(held)
    return levels


def versions_read(operations):
    """(t, j) -> updates before its forward, and before its backward."""
    newest, forwards, backwards = 0, {}, {}
    for op in operations:
        if op.kind is Kind.UPDATE:
            newest += 1
        else:
            table = forwards if op.kind is Kind.FORWARD else backwards
            table[op.minibatch, op.microbatch] = newest
    return forwards, backwards


@QUICK
@given(schedules, stages, microbatches, minibatches)
def test_every_stage_does_every_operation_once_and_forward_before_backward_before_update(schedule, D, N, M):
    for r in range(D):
        operations = [str(op) for op in schedule.operations(r, D, N, M)]
        place = {text: i for i, text in enumerate(operations)}
        wanted = {f"{k}{t}.{j}" for k in "FB" for t in range(M) for j in range(N)} | {f"U{t}" for t in range(M)}
        assert len(operations) == len(place)
        assert place.keys() == wanted
        for t in range(M):
            assert all(place[f"F{t}.{j}"] < place[f"B{t}.{j}"] < place[f"U{t}"] for j in range(N))
        assert [place[f"U{t}"] for t in range(M)] == sorted(place[f"U{t}"] for t in range(M))


@QUICK
@given(schedules, stages, microbatches, minibatches)
def test_no_schedule_deadlocks_or_is_refused(schedule, D, N, M):
    assert len(checked_lists(schedule, D, N, M)) == D


@QUICK
@given(schedules, stages, microbatches, minibatches)
def test_a_stage_works_on_microbatches_in_order_forwards_and_backwards(schedule, D, N, M):
    for r in range(D):
        for kind in (Kind.FORWARD, Kind.BACKWARD):
            ks = [op.minibatch * N + op.microbatch for op in schedule.operations(r, D, N, M) if op.kind is kind]
            assert ks == list(range(M * N))


@QUICK
@given(schedules, st.integers(1, 8), st.integers(1, 8))
def test_in_flight_is_the_formula_reached_and_never_exceeded(schedule, D, N):
    for r in range(D):
        expected = in_flight_of_the_table(schedule, r, D, N)
        assert schedule.in_flight(r, D, N) == expected
        enough = -(-expected // N) + 2
        assert max(held_after_each(schedule.operations(r, D, N, enough))) == expected


@QUICK
@given(st.sampled_from(SCHEDULES[3:]), st.integers(2, 8), st.integers(1, 4))
def test_1f1b_never_falls_below_its_level_between_warm_up_and_drain(schedule, D, N):
    for r in range(D):
        level = in_flight_of_the_table(schedule, r, D, N)
        operations = schedule.operations(r, D, N, -(-level // N) + 3)
        last_forward = max(i for i, op in enumerate(operations) if op.kind is Kind.FORWARD)
        steady = held_after_each(operations)[level - 1 : last_forward + 1]
        assert set(steady) <= {level, level - 1}


@QUICK
@given(st.sampled_from(SYNCHRONOUS), stages, microbatches, minibatches)
def test_synchronous_schedules_read_version_t_for_minibatch_t(schedule, D, N, M):
    assert schedule.synchronous
    for r in range(D):
        for versions in versions_read(schedule.operations(r, D, N, M)):
            assert all(version == t for (t, _), version in versions.items())


@QUICK
@given(st.one_of(st.none(), st.integers(1, 24)), stages, microbatches, st.integers(1, 20))
def test_1f1b_reads_the_closed_form_of_versions(depth, D, N, M):
    schedule = OneFOneB(depth)
    assert not schedule.synchronous
    for r in range(D):
        d = in_flight_of_the_table(schedule, r, D, N) - 1
        forwards, backwards = versions_read(schedule.operations(r, D, N, M))
        assert all(version == max(0, (t * N + j - d) // N) for (t, j), version in forwards.items())
        assert all(version == t for (t, _), version in backwards.items())


@pytest.mark.parametrize("D", range(1, 9))
def test_1f1b_with_one_microbatch_reads_t_minus_the_stages_behind(D):
    for r in range(D):
        forwards, _ = versions_read(OneFOneB().operations(r, D, 1, 12))
        assert [forwards[t, 0] for t in range(12)] == [max(0, t - (D - 1 - r)) for t in range(12)]


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (1, [1, 1, 1, 1]),
        (2, [2, 1, 1, 1]),
        (3, [3, 2, 1, 1]),
        (4, [4, 3, 2, 1]),
        (None, [4, 3, 2, 1]),
        (7, [7, 5, 3, 1]),
    ],
)
def test_depth_below_at_and_above_the_number_of_stages(depth, expected):
    schedule = OneFOneB(depth)
    assert [schedule.in_flight(r, 4, 1) for r in range(4)] == expected
    forwards, _ = versions_read(schedule.operations(0, 4, 1, 12))
    assert [forwards[t, 0] for t in range(12)] == [max(0, t - (expected[0] - 1)) for t in range(12)]


@pytest.mark.parametrize("depth", [1, 3, 6, 40])
def test_the_last_stage_is_never_stale_whatever_the_depth(depth):
    forwards, _ = versions_read(OneFOneB(depth).operations(5, 6, 2, 6))
    assert all(version == t for (t, _), version in forwards.items())


@pytest.mark.parametrize("depth", [0, -1, 2.5, "4"])
def test_a_depth_that_is_no_positive_whole_number_is_refused_by_name(depth):
    with pytest.raises(ConfigError, match=r"schedule\.depth"):
        OneFOneB(depth)


def test_the_lists_of_the_papers_at_small_sizes():
    def text(schedule, r, D, N, M):
        return " ".join(str(op) for op in schedule.operations(r, D, N, M))

    assert text(Sequential(), 0, 2, 2, 1) == "F0.0 B0.0 F0.1 B0.1 U0"
    assert text(GPipe(), 1, 2, 2, 1) == "F0.0 F0.1 B0.0 B0.1 U0"
    assert text(OneFOneBFlush(), 0, 2, 3, 1) == "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2 U0"
    assert text(OneFOneBFlush(), 1, 2, 3, 1) == "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 U0"
    assert text(OneFOneB(), 0, 2, 1, 3) == "F0.0 F1.0 B0.0 U0 F2.0 B1.0 U1 B2.0 U2"
    assert text(OneFOneB(), 1, 2, 1, 2) == "F0.0 B0.0 U0 F1.0 B1.0 U1"
    assert text(OneFOneB(), 0, 2, 2, 2) == "F0.0 F0.1 B0.0 F1.0 B0.1 U0 F1.1 B1.0 B1.1 U1"
