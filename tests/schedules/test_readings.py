"""Which versions operations read, against the specification's worked example and closed forms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipetrain.executors.base import Rules
from pipetrain.methods.naive_async import NaiveAsync
from pipetrain.methods.pipedream import PipeDream
from pipetrain.methods.pipeoptim import PipeOptim
from pipetrain.methods.synchronous import Synchronous
from pipetrain.schedules.gpipe import GPipe
from pipetrain.schedules.one_f_one_b import OneFOneB
from pipetrain.schedules.one_f_one_b_flush import OneFOneBFlush
from pipetrain.schedules.operation import Kind, backward, forward
from pipetrain.schedules.readings import readings, staleness
from pipetrain.schedules.sequential import Sequential

ASYNCHRONOUS = [NaiveAsync(), PipeDream(), PipeDream(vertical_sync=True), PipeOptim()]
QUICK = settings(max_examples=60, deadline=None)


def stage_readings(method, schedule, r, D, N=1, M=8):
    return readings(r, [schedule.operations(i, D, N, M) for i in range(D)], N, method)


def read_by(found, operation):
    return found.reads[found.operations.index(operation)]


@pytest.mark.parametrize(
    ("method", "schedule", "row"),
    [
        (Synchronous(), GPipe(), ["v4/v4", "v4/v4", "v4/v4", "v4/v4"]),
        (Synchronous(), OneFOneBFlush(), ["v4/v4", "v4/v4", "v4/v4", "v4/v4"]),
        (Synchronous(), Sequential(), ["v4/v4", "v4/v4", "v4/v4", "v4/v4"]),
        (PipeDream(), OneFOneB(), ["v1/v1", "v2/v2", "v3/v3", "v4/v4"]),
        (PipeDream(vertical_sync=True), OneFOneB(), ["v1/v1", "v1/v1", "v1/v1", "v1/v1"]),
        (PipeOptim(), OneFOneB(), ["v1+3/v4", "v2+2/v4", "v3+1/v4", "v4/v4"]),
        (NaiveAsync(), OneFOneB(), ["v1/v4", "v2/v4", "v3/v4", "v4/v4"]),
    ],
    ids=["gpipe", "1f1b_flush", "sequential", "pipedream", "vertical sync", "pipeoptim", "naive_async"],
)
def test_the_worked_example_of_four_stages_and_the_fifth_minibatch(method, schedule, row):
    found = [stage_readings(method, schedule, r, 4) for r in range(4)]
    assert [f"{read_by(f, forward(4))}/{read_by(f, backward(4))}" for f in found] == row


@QUICK
@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 8))
def test_every_asynchronous_method_reads_its_formula(D, N, M):
    for r in range(D):
        found = {method: stage_readings(method, OneFOneB(), r, D, N, M) for method in ASYNCHRONOUS}
        for t in range(M):
            for j in range(N):
                k = t * N + j
                now, entered = max(0, (k - (D - 1 - r)) // N), max(0, (k - (D - 1)) // N)
                versions = [
                    (read_by(found[m], forward(t, j)).version, read_by(found[m], backward(t, j)).version)
                    for m in ASYNCHRONOUS
                ]
                assert versions == [(now, t), (now, now), (entered, entered), (now, t)]


@QUICK
@given(st.integers(1, 10), st.integers(1, 8))
def test_pipeoptim_predicts_the_updates_between_forward_and_backward(D, N):
    enough = -(-D // N) + 4
    for r in range(D):
        d, found = D - 1 - r, stage_readings(PipeOptim(), OneFOneB(), r, D, N, enough)
        for t in range(enough):
            for j in range(N):
                read = read_by(found, forward(t, j))
                steps = read.transform.steps if read.transform else 0
                assert steps == t - read.version
                if t * N + j >= d:
                    assert steps == max(0, -(-(d - j) // N))
                if N == 1 and t >= D - 1:
                    assert steps == D - r - 1
                assert read_by(found, backward(t, j)).transform is None


def test_pipeoptim_predicts_fewer_steps_just_after_a_drain_and_none_on_the_last_stage():
    first = stage_readings(PipeOptim(), OneFOneB(), 0, 4)
    assert [str(read_by(first, forward(t))) for t in range(5)] == ["v0", "v0+1", "v0+2", "v0+3", "v1+3"]
    last = stage_readings(PipeOptim(), OneFOneB(), 3, 4)
    assert all(read.transform is None for read in last.reads if read)


@QUICK
@given(st.sampled_from(ASYNCHRONOUS), st.integers(1, 6), st.integers(1, 4), st.integers(1, 8))
def test_the_last_reader_of_a_version_is_the_last_operation_that_reads_it(method, D, N, M):
    for r in range(D):
        found = stage_readings(method, OneFOneB(), r, D, N, M)
        readers = {}
        for index, read in enumerate(found.reads):
            if read is not None:
                readers.setdefault(read.version, []).append(index)
        assert found.last_reader == {version: max(indices) for version, indices in readers.items()}
        for version, indices in readers.items():
            assert all(found.needed_after(i, version) for i in range(max(indices)))
            assert not found.needed_after(max(indices), version)
            assert version in found.released_by(max(indices))
            assert not any(version in found.released_by(i) for i in indices[:-1])


@QUICK
@given(st.sampled_from(ASYNCHRONOUS), st.integers(1, 6), st.integers(1, 4), st.integers(1, 8))
def test_changes_are_the_microbatches_whose_backward_reads_other_weights(method, D, N, M):
    for r in range(D):
        found = stage_readings(method, OneFOneB(), r, D, N, M)
        for t in range(M):
            for j in range(N):
                stale = t > max(0, (t * N + j - (D - 1 - r)) // N)
                changes = stale and not isinstance(method, PipeDream)
                assert ((t, j) in found.changes) == changes


def versions_held(found):
    """The most versions alive at once: the newest, and every older one that a later operation still reads."""
    newest, most = 0, 1
    for index, op in enumerate(found.operations):
        newest += op.kind is Kind.UPDATE
        most = max(most, sum(found.needed_after(index - 1, v) for v in range(newest)) + 1)
    return most


@pytest.mark.parametrize("N", [1, 2, 3, 4])
@pytest.mark.parametrize("D", [1, 2, 3, 4, 6])
def test_versions_held_are_those_of_the_specification(D, N):
    for r in range(D):
        own, first = -(-(D - 1 - r) // N) + 1, -(-(D - 1) // N) + 1
        assert versions_held(stage_readings(NaiveAsync(), OneFOneB(), r, D, N, 12)) == 1
        assert versions_held(stage_readings(PipeOptim(), OneFOneB(), r, D, N, 12)) == 1  # and a prediction in F
        assert versions_held(stage_readings(PipeDream(), OneFOneB(), r, D, N, 12)) == own
        assert versions_held(stage_readings(PipeDream(vertical_sync=True), OneFOneB(), r, D, N, 12)) == first


@pytest.mark.parametrize("depth", [1, 2, 4, 6, 9])
def test_versions_of_pipedream_follow_the_depth(depth):
    schedule = OneFOneB(depth)
    for r in range(4):
        found = stage_readings(PipeDream(), schedule, r, 4, 1, 16)
        assert versions_held(found) == schedule.in_flight(r, 4, 1)


@QUICK
@given(st.one_of(st.none(), st.integers(1, 12)), st.integers(1, 8), st.integers(1, 5), st.integers(1, 16))
def test_the_steady_state_begins_where_no_formula_is_clipped(depth, D, N, M):
    schedule = OneFOneB(depth)
    delays = [schedule.in_flight(r, D, N) - 1 for r in range(D)]
    unclipped = [t for t in range(M) if all(t * N >= d for d in delays)]
    steady = Rules(schedule, NaiveAsync(), D, N).steady(M)
    assert [t for t in range(M) if t >= steady] == unclipped


@pytest.mark.parametrize("schedule", [GPipe(), Sequential(), OneFOneBFlush()])
def test_synchronous_schedules_are_steady_from_the_start(schedule):
    assert Rules(schedule, Synchronous(), 4, 3).steady(5) == 0


def test_staleness_counts_the_updates_between_the_version_and_the_own_update():
    assert [staleness(version, 4) for version in (4, 3, 1)] == [0, 1, 3]
