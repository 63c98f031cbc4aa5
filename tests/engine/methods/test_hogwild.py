"""Delays drawn for hogwild: their distribution, what they depend on, and where they are cut."""

import math

import pytest

from pipetrain.engine.executors.pipeline_rules import PipelineRules
from pipetrain.engine.methods.hogwild import Hogwild
from pipetrain.engine.program.weight_reads import StageContext
from pipetrain.engine.schedules import Kind
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.engine.schedules.pipelined_backprop import PipeMareSchedule
from pipetrain.engine.schedules.replicas import Replicas
from pipetrain.engine.schedules.round_robin import RoundRobin

DRAWS = 20_000


def place(stage=0, stages=4, microbatches=1):
    return StageContext.under(OneFOneB(depth=1), stage, stages, microbatches)


def drawn(method, at, count=DRAWS):
    return [method.delay(at, t) for t in range(count)]


def share_up_to(k, mean, largest):
    """P(floor(x) <= k) for an exponential x conditioned on x <= largest."""
    return math.expm1(-min(k + 1, largest) / mean) / math.expm1(-largest / mean)


@pytest.mark.parametrize(("mean", "largest"), [(1.0, 4.0), (7.0, 28.0), (3.0, 2.5), (0.5, 20.0), (100.0, 8.0)])
def test_delays_follow_the_conditioned_exponential(mean, largest):
    delays = drawn(Hogwild(seed=1, mean_delay=mean, max_delay=largest), place())
    assert 0 <= min(delays) <= max(delays) <= largest
    for k in range(int(largest) + 1):
        share = sum(delay <= k for delay in delays) / DRAWS
        assert share == pytest.approx(share_up_to(k, mean, largest), abs=1.95 / math.sqrt(DRAWS))  # Kolmogorov, 0.1 %


def test_delays_depend_on_seed_stage_and_minibatch():
    first = drawn(Hogwild(seed=1, mean_delay=5.0), place(), 200)
    assert drawn(Hogwild(seed=1, mean_delay=5.0), place(), 200) == first
    for other in (
        drawn(Hogwild(seed=2, mean_delay=5.0), place(), 200),
        drawn(Hogwild(seed=1, mean_delay=5.0), place(stage=1), 200),
        first[1:] + first[:1],
    ):
        assert sum(a == b for a, b in zip(first, other, strict=True)) < 100


def test_delays_of_two_stages_are_independent():
    method = Hogwild(seed=1, mean_delay=5.0, max_delay=1000.0)
    a, b = drawn(method, place(0)), drawn(method, place(1))
    means = [sum(delays) / DRAWS for delays in (a, b)]
    spread = [math.sqrt(sum((x - mean) ** 2 for x in delays)) for delays, mean in zip((a, b), means, strict=True)]
    together = sum((x - means[0]) * (y - means[1]) for x, y in zip(a, b, strict=True))
    assert abs(together / spread[0] / spread[1]) < 4 / math.sqrt(DRAWS)


@pytest.mark.parametrize("N", [1, 2, 4])
def test_default_mean_delay_is_of_pipemare_and_limit_4_times_max(N):
    method, places = Hogwild(), [place(r, 4, N) for r in range(4)]
    means = [math.ceil((2 * (3 - r) + 1) / N) for r in range(4)]
    assert [method.mean(at) for at in places] == means
    assert [method.largest(at) for at in places] == [4.0 * means[0]] * 4


def test_default_limit_of_unlike_replicas_follows_the_largest_mean():
    method, schedule = Hogwild(), RoundRobin(OneFOneB(), Replicas((4, 1, 1, 1)))
    places = [StageContext.under(schedule, r, 4, 1) for r in range(4)]
    assert [method.mean(at) for at in places] == [3, 5, 3, 1]
    assert [method.largest(at) for at in places] == [20.0] * 4


def test_mean_delay_is_one_for_all_stages_or_one_for_each():
    places = [place(r, 3) for r in range(3)]
    assert [Hogwild(mean_delay=2.5).mean(at) for at in places] == [2.5] * 3
    each = Hogwild(mean_delay=[3.0, 2.0, 1.0])
    assert [each.mean(at) for at in places] == [3.0, 2.0, 1.0]
    assert [each.largest(at) for at in places] == [12.0] * 3


@pytest.mark.parametrize("schedule", [OneFOneB(depth=1), PipeMareSchedule()])
@pytest.mark.parametrize("N", [1, 2])
def test_hogwild_reads_no_version_before_drain_or_future(schedule, N):
    method, start = Hogwild(seed=4, mean_delay=4.0, max_delay=9.0), 30
    rules, seen = PipelineRules(schedule, method, 3, N), set()
    for r in range(3):
        newest, read_of = 0, {}
        for op, read, *_ in rules.planned(r, 40, start):
            if op.kind is Kind.UPDATE:
                newest += 1
                continue
            if op.kind is Kind.FORWARD:
                wanted = op.minibatch - method.delay(rules.contexts[r], start + op.minibatch)
                assert read.version == max(0, min(newest, wanted))
                seen.add(read.version - wanted)
                read_of[op.minibatch, op.microbatch] = read
            assert read == read_of[op.minibatch, op.microbatch]  # forward and backward alike
    assert max(seen) > 0  # some were cut at the drain
    assert 0 in seen


@pytest.mark.parametrize("N", [1, 2])
@pytest.mark.parametrize("D", [1, 2, 3, 4])
def test_hogwild_declares_versions_for_its_largest_delay(D, N):
    method = Hogwild(mean_delay=2.0, max_delay=6.5)
    assert [method.weight_versions(place(r, D, N)) for r in range(D)] == [7] * D


def test_t1_of_hogwild_uses_the_mean_delay():
    method = Hogwild(mean_delay=4.0, t1=True, anneal_steps=10)
    scales = [method.learning_rate_scale(place(), update) for update in (0, 5, 10, 50)]
    assert scales == pytest.approx([1 / 4, 1 / 2, 1.0, 1.0])
    assert Hogwild(mean_delay=4.0).learning_rate_scale(place(), 0) == 1.0
    assert Hogwild(mean_delay=0.1, t1=True, anneal_steps=10).learning_rate_scale(place(), 0) == 1.0
