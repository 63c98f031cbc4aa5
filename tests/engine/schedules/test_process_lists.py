"""Lists of processes with several stages, and of split backwards: of torch's library, and on their own."""

import re
from itertools import accumulate, combinations_with_replacement, count, groupby, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.library_schedules import library_schedule
from support.process_player import played_processes, process_list

from pipetrain.engine.schedules import Kind
from pipetrain.engine.schedules.base import cycle_ending
from pipetrain.engine.schedules.interleaved import Interleaved1F1B, InterleavedContinuous1F1B
from pipetrain.engine.schedules.looped_bfs import LoopedBFS
from pipetrain.engine.schedules.one_f_one_b_v import OneFOneBV
from pipetrain.engine.schedules.zero_bubble import ZBH1, ZBV

QUICK = settings(max_examples=40, deadline=None)
LOOPED = [cls(chunks) for cls in (Interleaved1F1B, InterleavedContinuous1F1B, LoopedBFS) for chunks in (2, 3, 4)]
TIMED = [OneFOneBV(times) for times in ([3, 3, 2], [2, 3, 2], [1, 2, 4], [5, 1, 9])]
SCHEDULES = [*LOOPED, ZBH1(), ZBV(), OneFOneBV(), *TIMED]
SYNCHRONOUS = [each for each in SCHEDULES if each.synchronous]
CONTINUOUS = [each for each in SCHEDULES if not each.synchronous]
ALIKE = [each for each in CONTINUOUS if each not in TIMED]
"""Schedules whose order assumes that operations take equally long."""


@st.composite
def cases(draw, which=SCHEDULES, most=(16, 16)):
    """(schedule, D, N) with at most so many stages and about so many microbatches."""
    schedule = draw(st.sampled_from(which))
    chunks = getattr(schedule, "chunks", 1)
    P, N = draw(st.integers(1, most[0] // chunks)), draw(st.integers(1, most[1]))
    return schedule, P * chunks, -(-N // P) * P if "interleaved" in schedule.name else N


# -- against torch's library -------------------------------------------------------------------------------------------

LIBRARY_NAMES = {
    Interleaved1F1B: "Interleaved1F1B",
    LoopedBFS: "LoopedBFS",
    ZBH1: "InterleavedZeroBubble",
    ZBV: "ZBVZeroBubble",
}


def of_library(schedule, D, N):
    """(stage, operation) of each process, as they print."""
    made = library_schedule(LIBRARY_NAMES[type(schedule)], schedule.placement(D), N)
    last = N - 1 if isinstance(schedule, LoopedBFS) else None

    def read(action):
        stage, kind, j = re.fullmatch(r"(\d+)([FBIW])(\d+)", str(action)).groups()
        j = last - int(j) if last is not None and kind == "B" else j
        return int(stage), f"{kind.replace('I', 'B')}0.{j}"

    return [[read(action) for action in made.pipeline_order[p] if action is not None] for p in made.pipeline_order]


@QUICK
@given(cases(SYNCHRONOUS, most=(16, 64)))
def test_processes_take_the_order_of_torchs_library(case):
    """Its LoopedBFS takes microbatches back in reversed order, and we in that of the forwards."""
    schedule, D, N = case
    if isinstance(schedule, ZBH1):
        N = N if N < 2 * D else N // D * D  # the library takes equal rounds, which are of no use in one stage
    for p, theirs in enumerate(of_library(schedule, D, N)):
        ours = [(r, str(op)) for r, op in process_list(schedule, p, D, N, 1) if op.kind is not Kind.UPDATE]
        assert ours == theirs


DRAWN = {
    Interleaved1F1B(): [
        "f0 f1 F0 F1 f2 B0 f3 B1 F2 b0 F3 b1 B2 B3 b2 b3",
        "f0 f1 F0 B0 F1 B1 f2 b0 f3 b1 F2 B2 F3 B3 b2 b3",
    ],
    LoopedBFS(): ["f0 f1 f2 f3 F0 F1 F2 F3 B0 B1 B2 B3 b0 b1 b2 b3"] * 2,
    ZBV(): [
        "f0 f1 f2 F0 B0 W0 F1 B1 W1 f3 b0 w0 F2 B2 W2 b1 w1 F3 B3 W3 b2 w2 b3 w3",
        "f0 F0 f1 F1 B0 W0 f2 b0 w0 F2 B1 W1 f3 b1 w1 F3 B2 W2 b2 B3 b3 w2 W3 w3",
    ],
    OneFOneBV(): [
        "f0 F0 B0 W0 f1 b0 w0 F1 B1 W1 f2 b1 w1 F2 B2 W2 f3 b2 w2 F3 B3 W3 b3 w3",
        "f0 F0 B0 b0 f1 F1 W0 w0 B1 b1 f2 F2 W1 w1 B2 b2 f3 F3 W2 w2 B3 b3 W3 w3",
    ],
}


@pytest.mark.parametrize("schedule", DRAWN)
def test_lists_of_two_processes_are_those_drawn(schedule):
    """Four microbatches; capitals are operations of the second stage of each process."""
    for p, text in enumerate(DRAWN[schedule]):
        listed = [(r, op) for r, op in process_list(schedule, p, 4, 4, 1) if op.kind is not Kind.UPDATE]
        cells = [f"{op.kind if r > 1 else op.kind.lower()}{op.microbatch}" for r, op in listed]
        assert " ".join(cells) == text


# -- lists of processes ------------------------------------------------------------------------------------------------


@QUICK
@given(cases(), st.integers(1, 4))
def test_no_process_waits_forever(case, M):
    schedule, D, N = case
    played = played_processes(schedule, D, N, M)
    done = [op for listed in played for *_, op in listed]
    assert len(done) == M * D * (N * (3 if schedule.splits_backward else 2) + 1)


@QUICK
@given(cases(), st.integers(1, 3), st.integers(1, 3))
def test_order_of_further_minibatches_leaves_that_of_the_first_as_it_is(case, M, more):
    schedule, D, N = case
    for p in range(schedule.placement(D).num_processes):
        longer = process_list(schedule, p, D, N, M + more)
        assert [(r, op) for r, op in longer if op.minibatch < M] == process_list(schedule, p, D, N, M)


@QUICK
@given(cases(SYNCHRONOUS), st.integers(1, 3))
def test_stages_of_a_process_update_together_when_flushed(case, M):
    schedule, D, N = case
    for p, stages in enumerate(schedule.placement(D).stages_of):
        runs = groupby(process_list(schedule, p, D, N, M), key=lambda entry: entry[1].kind is Kind.UPDATE)
        updates = [[(r, str(op)) for r, op in run] for update, run in runs if update]
        assert updates == [[(r, f"U{t}") for r in stages] for t in range(M)]


@QUICK
@given(cases(most=(16, 8)))
def test_numbers_in_flight_are_reached_and_not_exceeded(case):
    schedule, D, N = case
    for r in range(D):
        held, levels = 0, []
        for op in schedule.operations(r, D, N, -(-schedule.in_flight(r, D, N) // N) + 2):
            held += {Kind.FORWARD: 1, Kind.BACKWARD: -1}.get(op.kind, 0)
            levels.append(held)
        assert max(levels) == schedule.in_flight(r, D, N)


@QUICK
@given(cases(CONTINUOUS, most=(16, 8)))
def test_versions_of_forwards_and_the_steady_state_are_those_of_the_lists(case):
    schedule, D, N = case
    for r in range(D):
        newest, seen = 0, {}
        listed = schedule.operations(r, D, N, 40)
        for op in listed:
            newest += op.kind is Kind.UPDATE
            if op.kind is Kind.FORWARD:
                seen[op.minibatch, op.microbatch] = newest
        assert all(schedule.newest_at_forward(r, D, N, *key) == version for key, version in seen.items())
        assert schedule.delay(r, D, N) == max(t - version for (t, _), version in seen.items())
        assert schedule.steady_cycle(r, D, N) == cycle_ending(listed, 20) == cycle_ending(listed, 21)


# -- time --------------------------------------------------------------------------------------------------------------


def bubble(played, N, per_microbatch):
    """Time of the whole minibatch beyond that of its microbatches on one process."""
    return max(end for listed in played for _, end, _, _ in listed) - N * per_microbatch


@QUICK
@given(cases([each for each in LOOPED if each.synchronous], most=(16, 64)))
def test_bubble_of_looped_stages_is_p_minus_1_by_v(case):
    """With a time of F + B on all stages of a process, (P - 1)/v of it: Narayanan et al. 2021, § 2.2."""
    schedule, D, N = case
    P, v = D // schedule.chunks, schedule.chunks
    short = 2 * (v - 1) * max(0, P - N)  # breadth-first: too few microbatches to fill a loop
    assert bubble(played_processes(schedule, D, N, 1), N, 2 * v) == 2 * (P - 1) + short


@QUICK
@given(st.integers(1, 16), st.integers(0, 48), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_bubble_of_zb_h1_is_that_of_f_and_b_less_w(D, more, f, b, w):
    """(D - 1)(F + B - W), for W no longer than F and B: Qi et al. 2023, table 2."""
    w, N = min(f, b, w), D + more
    times = {Kind.FORWARD: f, Kind.BACKWARD: b, Kind.WEIGHT_GRADIENT: w, Kind.UPDATE: 0}
    played = played_processes(ZBH1(), D, N, 1, lambda op: times[op.kind])
    assert bubble(played, N, f + b + w) == (D - 1) * (f + b - w)
    for listed in played:
        held = accumulate({Kind.FORWARD: 1, Kind.WEIGHT_GRADIENT: -1}.get(op.kind, 0) for *_, op in listed)
        assert max(held) == D  # activations that wait for W: as many on every stage as on the first under 1F1B


@QUICK
@given(st.integers(1, 8), st.integers(1, 64))
def test_processes_of_zb_v_never_wait_between_their_ends(P, N):
    D = 2 * P
    played = played_processes(ZBV(), D, N, 1)
    assert bubble(played, N, 6) == max(P - 1, 2 * (D - 1 - N))
    for listed in played:
        if N >= D - 1:
            assert all(before[1] == after[0] for before, after in pairwise(listed))


@QUICK
@given(cases(ALIKE, most=(16, 4)))
def test_no_process_idles_once_a_continuous_schedule_has_filled(case):
    schedule, D, N = case
    for listed in played_processes(schedule, D, N, 3 * D // N + 20):
        filled = [entry for entry in listed if 3 * D <= entry[0] < listed[-1][0] - 6 * D]
        assert all(before[1] == after[0] for before, after in pairwise(filled))
        assert len(filled) > 30


@pytest.mark.parametrize("P", range(1, 13))
def test_w_of_1f1b_v_follows_its_b_as_early_as_free_times_allow(P):
    """Of the two ways to give both W the times that F and B leave, the one with the shorter longest lag."""
    for p, pair in enumerate(OneFOneBV().placement(2 * P).stages_of):
        listed = [(r, op) for r, op in process_list(OneFOneBV(), p, 2 * P, 1, 60) if op.kind is not Kind.UPDATE]
        at = {(r, op.kind): i for i, (r, op) in enumerate(listed) if op.minibatch == 30}  # one unit of time each
        taken = {at[r, kind] % 6 for r in pair for kind in (Kind.FORWARD, Kind.BACKWARD)}
        free = set(range(6)) - taken
        backwards = [at[r, Kind.BACKWARD] for r in pair]
        longest = [max((w - b) % 6 for w, b in zip(ws, backwards, strict=True)) for ws in permutations(free)]
        assert max(at[r, Kind.WEIGHT_GRADIENT] - at[r, Kind.BACKWARD] for r in pair) == min(longest)


def shortest_way_back(P):
    """Least time from the start of F on stage 0 to the end of its B, with a period of six units.

    F, then B, go from stage to stage, with waits before some: all ways to spread one more unit of waiting are tried
    until the two F and two B of each process are at four different times of the period.
    """
    way = [*range(2 * P), *reversed(range(2 * P))]
    for waits in count():
        for waiting in combinations_with_replacement(range(len(way)), waits):
            taken = {(min(r, 2 * P - 1 - r), (i + sum(w <= i for w in waiting)) % 6) for i, r in enumerate(way)}
            if len(taken) == len(way):
                return len(way) + waits
    raise AssertionError


@pytest.mark.parametrize(("P", "units"), [(1, 4), (2, 8), (3, 14), (4, 16), (5, 20), (6, 26)])
def test_no_periodic_schedule_in_a_v_brings_microbatches_back_earlier_than_1f1b_v(P, units):
    assert shortest_way_back(P) == units
    (listed, *_) = played_processes(OneFOneBV(), 2 * P, 1, 30)
    times = {(op.kind, op.minibatch): (start, end) for start, end, r, op in listed if r == 0}
    assert times[Kind.BACKWARD, 20][1] - times[Kind.FORWARD, 20][0] == units


# -- 1F1B in a V for given durations -----------------------------------------------------------------------------------

KINDS = (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT_GRADIENT)


@QUICK
@given(st.sampled_from(TIMED), st.integers(1, 8), st.integers(1, 3))
def test_no_process_idles_if_operations_last_as_the_order_is_made_for(schedule, P, N):
    times = dict(zip(KINDS, schedule.times, strict=True))
    period, M = 2 * sum(schedule.times), 8 * P + 20
    played = played_processes(schedule, 2 * P, N, M, lambda op: times.get(op.kind, 0))
    for listed in played:
        filled = [entry for entry in listed if 4 * P * period <= entry[0] < listed[-1][0] - 4 * P * period]
        assert all(before[1] == after[0] for before, after in pairwise(filled))
        assert len(filled) > 100


def starts_of(places, times):
    """stage -> starts of F, B and W of microbatch 0: the first along its way at `places`, modulo the period."""
    f, b, w = times
    period, D, now, starts = 2 * (f + b + w), len(places), 0, {r: [] for r in range(len(places))}
    for step, (r, kind) in enumerate([*((r, 0) for r in range(D)), *((r, 1) for r in reversed(range(D)))]):
        now += 0 if step == 0 else f if step <= D else b
        now += (places[r][kind] - now) % period
        starts[r].append(now)
    for r, (_, back) in starts.items():
        starts[r].append(back + b + (places[r][2] - back - b) % period)
    return starts


def staleness(starts, times):
    """By stage, other forwards that begin between F and W of a microbatch."""
    return [(starts[r][2] - starts[r][0]) // (2 * sum(times)) for r in sorted(starts)]


def filled_periods(p, D, times):
    """All orders in which the operations of process p fill a period, the first at 0: stage -> places of F, B and W."""
    operations = [(r, kind) for r in (p, D - 1 - p) for kind in range(3)]
    for rest in permutations(operations[1:]):
        order = [operations[0], *rest]
        begins = dict(zip(order, accumulate((times[kind] for _, kind in order[:-1]), initial=0), strict=True))
        yield {r: [begins[r, kind] for kind in range(3)] for r in (p, D - 1 - p)}


def listed_staleness(schedule, D):
    return [schedule.delay(r, D, 1) for r in range(D)]


@pytest.mark.parametrize(
    ("times", "least"),
    [
        ((1, 1, 2), [1, 1, 0, 0]),
        ((3, 3, 2), [2, 1, 0, 0]),
        pytest.param((2, 3, 2), [2, 1, 0, 0], marks=pytest.mark.slow),
    ],
)
def test_weights_of_two_processes_are_the_least_stale_of_all_orders(times, least):
    assert listed_staleness(OneFOneBV(times), 4) == least
    inner = list(filled_periods(1, 4, times))
    for outer in filled_periods(0, 4, times):
        for each in inner:
            for shift in range(2 * sum(times)):
                moved = {r: [place + shift for place in places] for r, places in each.items()}
                assert sum(staleness(starts_of({**outer, **moved}, times), times)) >= sum(least)


@QUICK
@given(st.sampled_from(TIMED), st.integers(2, 6), st.randoms(use_true_random=False))
def test_no_drawn_order_has_less_stale_weights(schedule, P, random):
    times, D = schedule.times, 2 * P
    least = sum(listed_staleness(schedule, D))
    orders = [list(filled_periods(p, D, times)) for p in range(P)]
    chosen = [(random.choice(each), random.randrange(2 * sum(times))) for each in orders]

    def total():
        places = {r: [at + shift for at in own] for order, shift in chosen for r, own in order.items()}
        return sum(staleness(starts_of(places, times), times))

    found = total()
    for _ in range(150):  # improves one process at a time
        p = random.randrange(P)
        before, chosen[p] = chosen[p], (random.choice(orders[p]), random.randrange(2 * sum(times)))
        if (changed := total()) <= found:
            found = changed
        else:
            chosen[p] = before
    assert found >= least


def test_times_count_relative_to_each_other():
    assert OneFOneBV([2, 2, 2]) == OneFOneBV()
    assert OneFOneBV([312, 312, 208]) == OneFOneBV((3, 3, 2))


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_process_with_all_stages_is_a_pipeline_as_well(schedule):
    D = getattr(schedule, "chunks", 1)
    schedule.check(D, 3)
    (listed,) = played_processes(schedule, D, 3, 2)
    assert all(before[1] == after[0] for before, after in pairwise(listed))
