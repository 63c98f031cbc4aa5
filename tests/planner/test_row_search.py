"""The best cuts of a pipeline whose replicas are given."""

from itertools import combinations, pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import chain, layer, search

from pipetrain.planner.memory import MemoryModel, MemoryRules
from pipetrain.planner.stage_costs import RingAllReduce
from pipetrain.planner.topology import Device, Topology
from pipetrain.schedules.one_f_one_b import OneFOneB, OneFOneBFlush

NUMBERS = st.integers(0, 20)
LAYERS = st.lists(st.builds(layer, st.integers(1, 20), NUMBERS, NUMBERS), min_size=3, max_size=5)


def searched(layers, topology, replicas, memory=None):
    return search(chain(*layers), topology, RingAllReduce(), memory, replicas)


def ends(found):
    return [stage.last for stage in found.stages()]


@settings(max_examples=15, deadline=None)
@given(layers=LAYERS, replicas=st.sampled_from([(2, 1), (1, 2, 1), (1, 1, 2)]))
def test_search_finds_what_trying_all_cuts_finds(layers, replicas):
    def time_s(cuts):
        times = [2 * layers[cut - 1].output_bytes for cut in cuts]
        for (first, last), count in zip(pairwise([0, *cuts, len(layers)]), replicas, strict=True):
            weights = sum(each.weight_bytes for each in layers[first:last])
            alone = sum(each.compute_s for each in layers[first:last])
            times.append(max(alone, 2 * (count - 1) / count * weights) / count)
        return max(times)

    best = min(map(time_s, combinations(range(1, len(layers)), len(replicas) - 1)))
    found = searched(layers, Topology((sum(replicas),), (1.0,)), replicas)
    assert found.least() == pytest.approx(best)
    assert time_s(ends(found)[:-1]) == pytest.approx(best)


def test_straight_pipeline_pays_for_the_link_that_each_cut_crosses():
    for sizes, slowest in (((4, 1, 8, 0), 2 * 8 / 8.0), ((4, 5, 8, 0), 2 * 5 / 2.0)):
        layers = [layer(1.0, output_bytes=each) for each in sizes]
        assert searched(layers, Topology((2, 2), (8.0, 2.0)), (1,) * 4).least() == slowest


def test_replicas_in_two_machines_exchange_their_weights_between_these():
    layers = [layer(1.0, weight_bytes=8), layer(1.0)]
    fast, slow = (searched(layers, Topology((2, 2), (8.0, 1.0)), each) for each in ((2, 2), (3, 1)))
    assert [stage.cost for stage in fast.stages()] == [1 / 2, 1 / 2]
    assert [stage.cost for stage in slow.stages()] == pytest.approx([2 * 2 / 3 * 8 / 3, 1.0])


def test_more_stages_than_layers_are_impossible():
    assert searched([layer(), layer()], Topology((3,), (1.0,)), (1, 1, 1)).least() == inf


def test_slowest_replica_sets_the_pace_of_its_stage():
    devices = (Device(1.0), Device(0.5), Device(1.0))
    found = searched([layer(1.0)] * 6, Topology((3,), (1.0,), devices), (2, 1))
    assert (ends(found), found.least()) == ([3, 6], 3.0)


@pytest.mark.parametrize(("schedule", "held"), [(OneFOneB(), 3), (OneFOneBFlush(), 4)], ids=["1f1b", "drained"])
def test_stage_keeps_what_is_in_flight_under_a_schedule_that_flows_or_drains(schedule, held):
    """Behind two replicas follow three stages: three minibatches for each in 1F1B-RR, four microbatches that drain."""
    memory = MemoryModel((MemoryRules(4 if schedule.synchronous else 1, schedule, lambda _at, _delay: 1, states=0),))
    layers = [layer(1.0, activation_bytes=120)] * 4
    kept = held * 120 / memory.phases[0].microbatches
    for room, possible in ((kept, True), (kept - 1, False)):
        devices = (*[Device(memory_bytes=room)] * 2, *[Device(memory_bytes=1e9)] * 3)
        found = searched(layers, Topology((5,), (1.0,), devices), (2, 1, 1, 1), memory)
        assert (found.least() < inf) == possible
