"""Pipelines on devices in a row, with given replicas or limited memory, against trying all."""

import itertools
from dataclasses import replace
from itertools import combinations, pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import chain, layer, search, splits

from pipetrain.engine.schedules.gpipe import GPipe
from pipetrain.engine.schedules.one_f_one_b import OneFOneB, OneFOneBFlush
from pipetrain.planning.costs.memory import MemoryModel, MemoryRules, StagePlace, StageSizes
from pipetrain.planning.costs.stage_costs import CostModel
from pipetrain.planning.costs.topology import Device, Topology
from pipetrain.planning.profile.antichains import AntichainStates
from pipetrain.planning.search.flat import FlatSearch

SIZES = st.integers(0, 20)
LAYERS = st.lists(st.builds(layer, st.integers(1, 20), SIZES, SIZES, SIZES), min_size=1, max_size=4)


def rules(schedule, N):
    return MemoryRules(N, schedule, lambda at: 1 if schedule.synchronous else at.delay + 1, more=lambda _: 1)


def tried(layers, devices, memory, read):
    """(seconds, share of the fullest device) of every pipeline of a chain on devices with links of 2 bytes/s."""
    for counts in splits(len(devices)):
        for cuts in itertools.combinations(range(1, len(layers)), len(counts) - 1):
            parts = [layers[a:b] for a, b in itertools.pairwise([0, *cuts, len(layers)])]
            groups = [devices[a:b] for a, b in itertools.pairwise([0, *itertools.accumulate(counts)])]
            times = [2 * layers[cut - 1].output_bytes / 2 for cut in cuts]
            for part, group, count in zip(parts, groups, counts, strict=True):
                slowest = sum(each.compute_s for each in part) / min(each.speed for each in group)
                weights = sum(each.weight_bytes for each in part)
                times.append(max(slowest, 2 * (count - 1) / count * weights / 2) / count)
            held = [sum(each.weight_bytes for each in part) for part in parts]
            sent = [0, *(layers[cut - 1].output_bytes for cut in cuts), 0]
            ahead = [read[0] * (r == 0) + read[1] * (r == len(parts) - 1) for r in range(len(parts))]
            sizes = [
                StageSizes(
                    held[r], held[r], 0, sum(each.activation_bytes for each in part), 0, 0, sent[r + 1], sent[r],
                    read_ahead=ahead[r],
                )
                for r, part in enumerate(parts)
            ]  # fmt: skip
            places = (replace(place, before=None) for place in StagePlace.row(counts))  # as a search knows them
            kept = map(memory.stage_bytes, places, sizes)
            rooms = (min(each.memory_bytes for each in group) for group in groups)
            yield max(times), max(size / room for size, room in zip(kept, rooms, strict=True))


@settings(max_examples=60)
@given(st.data())
def test_limited_search_finds_what_trying_all_finds(data):
    layers = data.draw(LAYERS)
    schedules = st.sampled_from([OneFOneB(), OneFOneBFlush(), GPipe()])
    phases = data.draw(st.lists(schedules, min_size=1, max_size=2))
    N = data.draw(st.integers(1, 3))
    memory = MemoryModel(tuple(rules(each, N) for each in phases))
    device = st.builds(Device, st.sampled_from([1.0, 0.5]), st.integers(1, 300).map(float))
    alike = st.builds(lambda one, count: [one] * count, device, st.integers(2, 4))
    devices = data.draw(st.lists(device, min_size=1, max_size=4) | alike)
    read = data.draw(SIZES), data.draw(SIZES)
    every = list(tried(layers, devices, memory, read))
    profile = replace(chain(*layers), input_bytes=read[0], target_bytes=read[1])
    topology = Topology((len(devices),), (2.0,), tuple(devices))
    fastest = search(profile, topology, CostModel(), memory)
    expected = min((seconds for seconds, share in every if share <= 1), default=inf)
    assert fastest.least() == pytest.approx(expected)
    smallest = FlatSearch(AntichainStates.of(profile), topology, memory)
    assert smallest.least() == pytest.approx(min(share for _, share in every))
    if expected < inf:
        found = list(fastest.stages())
        assert sum(stage.replicas for stage in found) == len(devices)
        assert max(stage.cost for stage in found) <= expected * (1 + 1e-9)


def test_drained_pipelines_on_equal_devices_cost_once_per_depth(monkeypatch):
    made = []
    stacked = FlatSearch._stacked
    monkeypatch.setattr(FlatSearch, "_stacked", lambda self, *where: made.append(where) or stacked(self, *where))
    topology = Topology((8,), (2.0,), (Device(memory_bytes=200.0),) * 8)
    fastest = search(
        chain(*[layer(1.0, activation_bytes=20)] * 8), topology, CostModel(),
        MemoryModel((rules(GPipe(), 2),)),
    )  # fmt: skip
    assert fastest.least() == 1.0
    assert made == [(0, behind) for behind in range(8)]


def best_replicas(layers, limit, schedule, N):
    topology = Topology((4,), (2.0,), (Device(memory_bytes=limit),) * 4)
    memory = MemoryModel((rules(schedule, N),))
    fastest = search(chain(*layers), topology, CostModel(), memory)
    return [stage.replicas for stage in fastest.stages()], fastest.least()


def test_drained_stage_memory_follows_later_stages():
    """Two of four microbatches of 100 bytes, though there are three devices behind, and 30 bytes for its weights."""
    layers = [layer(1.0, weight_bytes=10, activation_bytes=100), layer(3.0)]
    assert best_replicas(layers, 80, OneFOneBFlush(), 4) == ([1, 3], 1.0)
    assert best_replicas(layers, 79, OneFOneBFlush(), 4)[1] > 1.0


def test_stages_with_equal_replicas_keep_fewer_microbatches():
    """Two minibatches of 20 bytes and five sets of weights of 10 on the first; unlike ones keep up to 3.5 and six."""
    layers = [layer(1.0, weight_bytes=10, activation_bytes=20) for _ in range(4)]
    assert best_replicas(layers, 90, OneFOneB(), 2) == ([1, 1, 1, 1], 1.0)
    assert best_replicas(layers, 89, OneFOneB(), 2)[1] > 1.0


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [OneFOneB(), OneFOneBFlush()])
def test_300_layers_on_16_limited_devices_are_planned(schedule):
    layers = [layer(1 + i % 7, 10 + i % 5, 10 + i % 3, 100 + i % 11) for i in range(300)]
    topology = Topology((16,), (1e3,), (Device(memory_bytes=6e3),) * 16)
    fastest = search(chain(*layers), topology, CostModel(), MemoryModel((rules(schedule, 8),)))
    assert fastest.least() < inf
    stages = list(fastest.stages())
    assert len(stages) > 1
    assert sum(stage.replicas for stage in stages) == 16
    assert fastest.least() >= max(stage.cost for stage in stages) * (1 - 1e-9)


NUMBERS = st.integers(0, 20)
ENOUGH_LAYERS = st.lists(st.builds(layer, st.integers(1, 20), NUMBERS, NUMBERS), min_size=3, max_size=5)


def searched(layers, topology, replicas, memory=None):
    return search(chain(*layers), topology, CostModel(), memory, replicas)


def ends(found):
    return [stage.last for stage in found.stages()]


@settings(max_examples=15)
@given(layers=ENOUGH_LAYERS, replicas=st.sampled_from([(2, 1), (1, 2, 1), (1, 1, 2)]))
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


def test_straight_pipeline_pays_for_the_link_of_each_cut():
    for sizes, slowest in (((4, 1, 8, 0), 2 * 8 / 8.0), ((4, 5, 8, 0), 2 * 5 / 2.0)):
        layers = [layer(1.0, output_bytes=each) for each in sizes]
        assert searched(layers, Topology((2, 2), (8.0, 2.0)), (1,) * 4).least() == slowest


def test_replicas_in_two_machines_average_between_machines():
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
def test_stage_memory_counts_what_its_schedule_has_in_flight(schedule, held):
    """Behind two replicas follow three stages: three minibatches for each in 1F1B-RR, four microbatches that drain."""
    memory = MemoryModel((MemoryRules(4 if schedule.synchronous else 1, schedule, lambda _: 1, more=lambda _: 0),))
    layers = [layer(1.0, activation_bytes=120)] * 4
    kept = held * 120 / memory.phases[0].microbatches
    for room, possible in ((kept, True), (kept - 1, False)):
        devices = (*[Device(memory_bytes=room)] * 2, *[Device(memory_bytes=1e9)] * 3)
        found = searched(layers, Topology((5,), (1.0,), devices), (2, 1, 1, 1), memory)
        assert (found.least() < inf) == possible
