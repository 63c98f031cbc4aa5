"""Pipelines on shared cores: hand-computed cases, a fluid reference in exact fractions, and cores enough for all."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipetrain.program import repetition
from pipetrain.program.pipeline_graph import SteadyPipeline
from pipetrain.program.repetition import repetition_of
from pipetrain.program.replication import Replication
from pipetrain.program.routes import Routes
from pipetrain.program.shared_cores import SharedCores
from pipetrain.program.shared_play import SharedPlay
from pipetrain.program.steady_state import steady_state
from pipetrain.program.times import StageTimes
from pipetrain.schedules.gpipe import GPipe
from pipetrain.schedules.nf1b import NF1B
from pipetrain.schedules.one_f_one_b import OneFOneB, OneFOneBFlush
from pipetrain.schedules.operation import Operation
from pipetrain.schedules.pipelined_backprop import PipelinedBackprop

SCHEDULES = [GPipe(), OneFOneB(), OneFOneBFlush(), PipelinedBackprop(), NF1B()]


def times(D, N, forward=1.0, backward=2.0, inputs=0.0):
    return StageTimes(
        [forward] * D, [0.0] * D, [backward] * D, [0.0] * D, N, [0.0] * (D - 1), [0.0] * (D - 1), None, inputs
    )


def pipeline(schedule, took, D, N, replication=None):
    return SteadyPipeline([schedule.steady_cycle(r, D, N) for r in range(D)], took, replication or Replication.none(D))


def steady(schedule, D, N, at_once, took=None, hosts=None):
    cores = SharedCores(at_once, hosts or [0] * D)
    return steady_state(pipeline(schedule, took or times(D, N), D, N), cores)


def play(piped, at_once, hosts):
    return SharedPlay(piped.computations(), [host for host in hosts for _ in range(2)], at_once)


@pytest.mark.parametrize(
    ("schedule", "D", "N", "at_once", "period", "idle"),
    [
        (OneFOneB(), 3, 1, 2, 3 * 3 / 2, 0.0),  # three that are never done, on two cores
        (OneFOneB(), 3, 1, 1.5, 3 * 3 / 1.5, 0.0),
        (GPipe(), 2, 1, 1, 6.0, 0.5),  # one at a time, whose core is its own
        (
            GPipe(),
            2,
            2,
            1,
            12.0,
            (1 + 2) / 12,
        ),  # both at half speed, but for the other's last forward and first backward
    ],
)
def test_stages_on_scarce_cores_take_as_long_as_by_hand(schedule, D, N, at_once, period, idle):
    found = steady(schedule, D, N, at_once)
    assert found.period == pytest.approx(period)
    assert found.idle == pytest.approx([idle] * D)
    assert found.cores_busy == pytest.approx((3 * N * D / at_once / period,))


def test_each_host_has_cores_of_its_own():
    found = steady(OneFOneB(), 4, 1, 1, hosts=[0, 1, 0, 1])
    assert found.period == pytest.approx(6.0)
    assert found.cores_busy == pytest.approx((1.0, 1.0))


def test_reading_of_data_takes_a_core_and_is_not_computing():
    found = steady(OneFOneB(), 2, 1, 1, times(2, 1, inputs=2.0))
    assert found.period == pytest.approx(3.0 + 3.0 + 2.0)
    assert found.cores_busy == pytest.approx((1.0,))
    assert found.waiting[0] < found.idle[0]
    assert found.waiting[1] == pytest.approx(found.idle[1])


def test_replicas_gain_nothing_from_cores_that_they_share():
    piped = pipeline(OneFOneB(), times(1, 1), 1, 1, Replication([3], [0.5]))
    apart, shared = steady_state(piped, None), steady_state(piped, SharedCores(1, [0, 0, 0]))
    assert apart.period == pytest.approx((3 + 0.5) / 3)
    assert shared.period == pytest.approx((9 + 0.5) / 3)
    assert shared.idle == pytest.approx([0.5 / 9.5])


def drawn_times(data, D, N):
    draw = lambda least, count: [float(data.draw(st.integers(least, 4))) for _ in range(count)]  # noqa: E731
    took = draw(1, D), draw(0, D), draw(1, D), draw(0, D)
    return StageTimes(*took, N, draw(0, D - 1), draw(0, D - 1), None, *draw(0, 2))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_play_is_that_of_a_fluid_stepped_in_exact_fractions(data):
    D, N = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    piped = pipeline(data.draw(st.sampled_from(SCHEDULES)), drawn_times(data, D, N), D, N)
    at_once = data.draw(st.sampled_from([Fraction(1), Fraction(3, 2), Fraction(2)]))
    hosts = [data.draw(st.integers(0, 1)) for _ in range(D)]
    expected = list(map(float, Fluid(piped, at_once, hosts, turns=24).starts()))
    played = itertools.islice(play(piped, float(at_once), hosts).turns(), 12)
    assert [state.now for state in played] == pytest.approx(expected[1:13], abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_period_is_the_mean_of_a_long_play(data):
    D, N = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 2))
    piped = pipeline(data.draw(st.sampled_from(SCHEDULES)), drawn_times(data, D, N), D, N)
    found = repetition_of(play(piped, 1.5, [0] * D).turns())
    starts = [state.now for state in itertools.islice(play(piped, 1.5, [0] * D).turns(), 241)]
    assert found.turn_s == pytest.approx((starts[240] - starts[120]) / 120, rel=0.02)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_play_with_cores_for_all_has_the_period_of_devices_of_their_own(data):
    D, N = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    took = drawn_times(data, D, N)
    replication = Replication([data.draw(st.integers(1, 2))] * D, [data.draw(st.integers(0, 3))] * D)
    piped = pipeline(data.draw(st.sampled_from(SCHEDULES)), took, D, N, replication)
    found = repetition_of(play(piped, 8.0, [0] * sum(replication.replicas)).turns())
    assert found.turn_s / replication.turn == pytest.approx(steady_state(piped).period, rel=1e-9)


def test_play_that_never_repeats_itself_has_the_mean_of_its_second_half(monkeypatch):
    monkeypatch.setattr(repetition, "_EQUAL", -1.0)
    monkeypatch.setattr(repetition, "_MOST_STEPS", 2000)
    assert steady(OneFOneB(), 3, 1, 2).period == pytest.approx(3 * 3 / 2, rel=0.02)


def test_stages_that_wait_for_each_other_are_told():
    cycles = [[Operation.parse(word) for word in text.split()] for text in ("B0.0 F0.0 U0", "F0.0 B0.0 U0")]
    with pytest.raises(ValueError, match="wait for each other"):
        steady_state(SteadyPipeline(cycles, times(2, 1), Replication.none(2)), SharedCores(1, [0, 0]))


class Fluid:
    """Steps from change to change; lanes have the operations of so many turns, and what comes from before is there."""

    def __init__(self, piped, at_once, hosts, turns):
        self.times, self.at_once, self.hosts = piped.times, at_once, hosts
        self.cycle = len(piped.cycles[0])
        self.lists = [[op.moved(turn) for turn in range(turns) for op in cycle] for cycle in piped.cycles]
        self.made = [set(operations) for operations in self.lists]
        self.routes = Routes(len(self.lists))
        self.arrived, self.link_free = {}, {}
        self.now = Fraction(0)
        self.done = [0] * len(self.lists)  # operations of each lane
        self.left = {}  # lane -> [what is under way, how much of it is left]
        self.first_lane = []

    def starts(self):
        """When stage 0 begins each turn."""
        while True:
            self.begin()
            if not self.left:
                coming = [time for time in self.arrived.values() if time > self.now]
                if not coming:
                    return self.first_lane[:: self.cycle]
                self.now = min(coming)
                continue
            self.step()

    def begin(self):
        began = True
        while began:
            began = False
            for r, operations in enumerate(self.lists):
                if r not in self.left and self.done[r] < len(operations) and self.ready(r, operations[self.done[r]]):
                    op = operations[self.done[r]]
                    self.left[r] = ["computes", Fraction(self.times.duration(r, op))]
                    self.first_lane += [self.now] if r == 0 else []
                    began = True
            for r in [r for r, (_, left) in self.left.items() if not left]:
                self.end(r)
                began = True

    def ready(self, r, op):
        sender = self.routes.sender(r, op)
        if sender is None or op not in self.made[sender]:
            return True
        return (r, op) in self.arrived and self.arrived[r, op] <= self.now

    def end(self, r):
        what, _ = self.left.pop(r)
        op = self.lists[r][self.done[r]]
        if what == "computes":
            for target in (r - 1, r + 1):
                if 0 <= target < len(self.lists) and self.routes.sender(target, op) == r:
                    leaves = max(self.now, self.link_free.get((r, op.kind), Fraction(0)))
                    self.link_free[r, op.kind] = leaves + Fraction(self.times.occupation(r, target, op))
                    self.arrived[target, op] = leaves + Fraction(self.times.transfer(r, target, op))
            if reading := Fraction(self.times.reading(r, op)):
                self.left[r] = ["reads", reading]
                return
        self.done[r] += 1

    def step(self):
        rates = {}
        for r in self.left:
            sharing = sum(self.hosts[other] == self.hosts[r] for other in self.left)
            rates[r] = min(Fraction(1), self.at_once / sharing)
        span = min(left / rates[r] for r, (_, left) in self.left.items())
        coming = [time - self.now for time in self.arrived.values() if time > self.now]
        span = min([span, *coming])
        for r, under_way in self.left.items():
            under_way[1] -= span * rates[r]
        self.now += span
