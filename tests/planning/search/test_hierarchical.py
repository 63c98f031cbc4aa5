"""The search for the best pipeline, against trying all, and against PipeDream's recurrence on its own profiles."""

import json
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import PUBLISHED, VGG16, best_by_trying, chain, layer, search

from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.planning.costs.memory import MemoryModel, MemoryRules
from pipetrain.planning.costs.stage_costs import CostModel
from pipetrain.planning.costs.topology import Device, Topology
from pipetrain.planning.profile.profile import Message
from pipetrain.planning.profile.profile_file import read_profile

NUMBERS = st.integers(0, 20)
MESSAGES = st.none() | st.builds(Message, NUMBERS, NUMBERS, NUMBERS)
LAYERS = st.lists(
    st.builds(
        lambda sizes, output, gradient: replace(layer(*sizes), encoded_output=output, encoded_gradient=gradient),
        st.tuples(st.integers(1, 20), NUMBERS, NUMBERS),
        MESSAGES,
        MESSAGES,
    ),
    min_size=1,
    max_size=4,
)
LEVELS = st.sampled_from([(3,), (4,), (2, 2), (2, 3)])
VGG_ROWS = [
    ((4,), (3.125e9,), "3-1", 0.17141266666666666),
    ((8,), (1.25e9,), "7-1", 0.08887428571428571),
    ((8,), (10e9,), "6-2", 0.084781),
    ((16,), (3.125e9,), "15-1", 0.0423406),
    ((8, 2), (30e9, 3.125e9), "8-6-2", 0.06576668672),
]


class WithoutMessages(MemoryModel):
    """Memory of stages whose messages take none, so that it depends on their own layers alone."""

    def stage_bytes(self, place, sizes):
        return super().stage_bytes(place, replace(sizes, outputs=0.0, gradients=0.0))


STASHING = WithoutMessages((MemoryRules(1, OneFOneB(), lambda at: at.delay + 1, more=lambda _: 0),))


def replicas(found):
    return "-".join(str(stage.replicas) for stage in found.stages())


def stashed_bytes(layers, count, behind):
    held = (behind + count - 1) // count + 1
    return sum((held + 1) * each.weight_bytes + held * each.activation_bytes for each in layers)


@pytest.mark.parametrize(
    ("costs", "synchronization"),
    [
        (CostModel(as_printed=True), lambda m, weights, B: 2 * (m - 1) * weights / B),
        (CostModel(), lambda m, weights, B: 2 * (m - 1) / m * weights / B),
    ],
    ids=["paper", "ring"],
)
@settings(max_examples=15)
@given(layers=LAYERS, workers=LEVELS)
def test_search_finds_what_trying_all_pipelines_finds(costs, synchronization, layers, workers):
    bandwidths = (2.0, 1.0)[: len(workers)]
    found = search(chain(*layers), Topology(workers, bandwidths), costs)
    assert found.least() == pytest.approx(best_by_trying(layers, workers, bandwidths, synchronization))


@settings(max_examples=15)
@given(layers=LAYERS, limit=st.integers(20, 100))
def test_search_under_a_memory_limit_finds_what_trying_all_finds(layers, limit):
    topology = Topology((3,), (2.0,), (Device(memory_bytes=limit),) * 3)
    found = search(chain(*layers), topology, CostModel(as_printed=True), STASHING)
    expected = best_by_trying(
        layers, (3,), (2.0,), lambda m, weights, B: 2 * (m - 1) * weights / B, limit, stashed_bytes
    )
    assert found.least() == pytest.approx(expected)


@pytest.mark.parametrize(("workers", "bandwidths", "expected", "time_s"), VGG_ROWS)
def test_paper_recurrence_on_vgg16_gives_the_reference_answer(workers, bandwidths, expected, time_s):
    found = search(read_profile(VGG16), Topology(workers, bandwidths), CostModel(as_printed=True))
    assert found.least() == pytest.approx(time_s, rel=1e-9)
    assert replicas(found) == expected


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published profiles are not here")
@pytest.mark.parametrize("model", ["vgg16", "resnet18", "resnet50", "gnmt"])
def test_paper_recurrence_matches_every_reference_answer(model):
    profile = read_profile(PUBLISHED / model / "graph.txt")
    for row in json.loads((PUBLISHED / "paper_recurrence.json").read_text()):
        if row["model"] == model:
            topology = Topology(tuple(row["workers"]), tuple(row["bandwidth_bytes_per_s"]))
            found = search(profile, topology, CostModel(as_printed=True))
            assert found.least() == pytest.approx(row["time_per_minibatch_s"], rel=1e-9), row


def test_ties_go_to_early_replicas_then_fewer_layers():
    tied = chain(layer(1.0), layer(1.0), layer(0.0), layer(1.0, output_bytes=0))
    found = search(tied, Topology((3,), (1.0,)), CostModel())
    assert [(stage.first, stage.last, stage.replicas) for stage in found.stages()] == [(0, 4, 3)]
    straight = search(tied, Topology((3,), (1.0,)), CostModel(), None, (1, 1, 1))
    assert [stage.last for stage in straight.stages()] == [1, 2, 4]


def test_synchronization_after_the_computation_adds_to_it():
    profile = chain(layer(4.0, weight_bytes=3))
    topology = Topology((2,), (1.0,))
    assert search(profile, topology, CostModel()).least() == 2.0
    assert search(profile, topology, CostModel(overlap=False)).least() == 3.5


def test_slow_device_gets_fewer_layers():
    profile = chain(*[layer(1.0)] * 6)
    devices = (Device(1.0), Device(0.5))
    found = search(profile, Topology((2,), (1.0,), devices), CostModel())
    assert ([stage.last for stage in found.stages()], found.least()) == ([4, 6], 4.0)
    found = search(profile, Topology((2,), (1.0,), devices[::-1]), CostModel())
    assert ([stage.last for stage in found.stages()], found.least()) == ([2, 6], 4.0)


def test_device_with_little_memory_gets_what_fits():
    profile = chain(*[layer(1.0, weight_bytes=10)] * 6)
    devices = (Device(memory_bytes=45), Device(memory_bytes=1000))
    found = search(profile, Topology((2,), (1.0,), devices), CostModel(), STASHING)
    assert ([stage.last for stage in found.stages()], found.least()) == ([1, 6], 5.0)


@pytest.mark.parametrize(("limit", "fits"), [(24, True), (23, False)])
def test_memory_in_two_machines_counts_devices_behind_each_stage(limit, fits):
    """2-1-1 with two layers in the last stage keeps least: 23 bytes where two minibatches are in flight, 24 behind."""
    layers = [layer(1.0, weight_bytes=1, activation_bytes=10) for _ in range(4)]
    topology = Topology((2, 2), (1.0, 1.0), (Device(memory_bytes=limit),) * 4)
    found = search(chain(*layers), topology, CostModel(as_printed=True), STASHING)
    assert (found.least() < inf) == fits


def test_pipeline_inside_machines_may_be_replicated_across_them():
    """Weights that are dear to exchange inside a machine and cheap between two: 3-1 in each of two machines."""
    layers = [layer(3.0), layer(1.0, weight_bytes=10)]
    found = search(chain(*layers), Topology((4, 2), (1.0, 1000.0)), CostModel())
    assert found.least() == 0.5
    assert [(stage.replicas, stage.cost) for stage in found.stages()] == [(6, 0.5), (2, 0.5)]
