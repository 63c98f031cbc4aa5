"""What the stages of a cut profile compute, send and average."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest

from pipetrain.engine.schedules.placement import Placement
from pipetrain.planning.costs.cut_profile import CutProfile
from pipetrain.planning.costs.prediction import stage_times
from pipetrain.planning.costs.topology import Device, Topology
from pipetrain.planning.profile.antichains import AntichainStates
from pipetrain.planning.profile.profile import LoaderTime, MessageCpuTime, Profile, ProfiledLayer, ProfiledWeight
from pipetrain.runner.partition.shared_weight import SharedWeight


def layer(label, forward_s=1.0, backward_s=2.0, output_bytes=10, weight_bytes=100):
    return ProfiledLayer(label, forward_s, backward_s, output_bytes, weight_bytes, 7)


def profile(*layers, edges=None):
    chain = tuple((i, i + 1) for i in range(len(layers) - 1))
    return Profile(tuple(layers), chain if edges is None else tuple(edges), batch_size=4)


def topology(*workers, bandwidth=(1e9, 1e6), devices=()):
    return Topology(workers, bandwidth[: len(workers)], devices)


def test_stage_takes_time_of_its_layers_on_slowest_device():
    devices = (Device(1.0), Device(0.5), Device(2.0))
    cut = CutProfile(profile(layer("a"), layer("b")), ((0,), (1,)), (2, 1), topology(3, devices=devices))
    assert cut.forward_s == [2.0, 0.5]
    assert cut.backward_s == [4.0, 1.0]


def test_stage_keeps_its_input_if_backward_needs_it():
    layers = [replace(layer(name), shared_bytes=shared) for name, shared in (("a", 0), ("b", 20), ("c", 300))]
    together = CutProfile(profile(*layers), ((0, 1), (2,)), (1, 1), topology(2))
    apart = CutProfile(profile(*layers), ((0,), (1, 2)), (1, 1), topology(2))
    skipping = CutProfile(profile(*layers, edges=[(0, 1), (0, 2)]), ((0,), (1, 2)), (1, 1), topology(2))
    assert [cut.activation_bytes for cut in (together, apart, skipping)] == [[14, 307], [7, 34], [7, 334]]


def test_ends_read_a_minibatch_of_data_ahead():
    data = replace(profile(*map(layer, "abc")), input_bytes=40, target_bytes=3)
    for stages, ahead in ((((0, 1, 2),), [43]), (((0,), (1,), (2,)), [40, 0, 3])):
        sizes = CutProfile(data, stages, (1,) * len(stages), topology(3)).stage_sizes
        assert [each.read_ahead for each in sizes] == ahead


def test_tensor_for_several_later_stages_passes_each_link_once():
    layers = layer("a", output_bytes=10), layer("b", output_bytes=1), layer("c", output_bytes=3)
    cut = CutProfile(profile(*layers, edges=[(0, 1), (0, 2), (1, 2)]), ((0,), (1,), (2,)), (1, 1, 1), topology(3))
    assert cut.sent_bytes == [10, 10 + 1]


def test_link_between_machines_has_their_bandwidth():
    cut = CutProfile(profile(*map(layer, "abc")), ((0,), (1,), (2,)), (1, 1, 2), topology(2, 2))
    assert cut.row.link_bytes_per_s == [1e9, 1e6]


def test_replicas_average_by_a_ring_on_each_level():
    cut = CutProfile(profile(layer("a", weight_bytes=1000)), ((0,),), (4,), topology(2, 2))
    assert cut.averaging_s == pytest.approx([2 * (1 / 2 * 1000 / 1e9 + 1 / 2 * 1000 / 1e6)])
    assert cut.total_sent_bytes == pytest.approx(2 * 3 / 4 * 1000)


def test_frozen_weights_are_not_averaged():
    trained = ProfiledWeight("w", (100,), 4)
    half_frozen = replace(layer("a", weight_bytes=1000), weights=(trained,))
    cut = CutProfile(profile(half_frozen), ((0,),), (2,), topology(2))
    assert (cut.weight_bytes, cut.trainable_bytes) == ([1000], [400])
    assert cut.averaging_s == pytest.approx([400 / 1e9])
    assert cut.total_sent_bytes == 400


def test_stages_exchange_gradients_of_the_weights_they_share():
    embedding = SharedWeight((0, 2), 60)
    parts = replace(profile(*map(layer, "abc")), shared_weights=(embedding,))
    apart, together = (
        CutProfile(parts, stages, (1,) * len(stages), topology(2, 2)) for stages in (((0,), (1,), (2,)), ((0, 1, 2),))
    )
    assert apart.ties == [([0, 2], pytest.approx(60 / 1e6))]
    assert apart.total_sent_bytes == 2 * (10 + 10) + 2 * 60
    assert (together.ties, together.total_sent_bytes) == ([], 0)


def test_replicas_across_machines_average_at_the_speed_between_them():
    parts = profile(*(layer(name, weight_bytes=1000) for name in "abc"))
    cut = CutProfile(parts, ((0,), (1,), (2,)), (1, 2, 1), topology(2, 2))
    assert cut.averaging_s == pytest.approx([0.0, 1000 / 1e6, 0.0])


@pytest.mark.parametrize(
    ("placement", "speeds", "sent"),
    [(Placement.looped(4, 2), [1e9] * 3, 3), (Placement.v_shaped(4), [1e9, inf, 1e9], 2)],
)
def test_messages_within_a_device_cost_nothing(placement, speeds, sent):
    parts = replace(profile(*map(layer, "abcd")), message_work=MessageCpuTime(0.5, 0.0))
    devices = Topology((2,), (1e9,), (Device(1.0), Device(0.5)), cores=2)
    cut = CutProfile(parts, ((0,), (1,), (2,), (3,)), (1,) * 4, devices, placement)
    assert cut.row.link_bytes_per_s == speeds
    assert cut.total_sent_bytes == 2 * 10 * sent
    assert cut.message_work_s(1) == [0.5 * sum(each < inf for each in ends) for ends in pairwise([inf, *speeds, inf])]
    assert (cut.num_devices, cut.devices) == (2, [placement.process_of(r) for r in range(4)])
    assert cut.forward_s == [1.0 if placement.process_of(r) == 0 else 2.0 for r in range(4)]
    messages = 2 * 2 * 0.5 * sent  # both ends, both directions
    assert cut.cores_s(1) == pytest.approx((sum(cut.forward_s + cut.backward_s) + messages) / 2)


def test_device_with_both_ends_reads_each_sample_once():
    parts = replace(profile(*map(layer, "abcd")), reading=LoaderTime(0.5, 0.25))
    stages, ones, two = ((0,), (1,), (2,), (3,)), (1,) * 4, topology(2)
    around, apart = (
        CutProfile(parts, stages, ones, two, each) for each in (Placement.v_shaped(4), Placement.looped(4, 2))
    )
    assert (around.reading_s, apart.reading_s) == ([0.5, 0, 0, 0], [0.5, 0, 0, 0.25])
    one, halves = (CutProfile(parts, each, (1,) * len(each), two) for each in (((0, 1, 2, 3),), ((0, 1), (2, 3))))
    assert (one.reading_s, halves.reading_s) == ([0.5], [0.5, 0.25])
    table = AntichainStates.of(parts).stage_seconds
    assert (table[0, -1], table[0, 1], table[3, -1]) == (12.5, 3.5, 3.25)
    times = stage_times(around, 1, [0.0] * 4)
    assert (times.inputs, times.targets) == (0.5, 0)


def test_tied_stages_of_one_device_exchange_nothing():
    tied = replace(profile(*map(layer, "abcd")), shared_weights=(SharedWeight((0, 3), 100),))
    stages, ones = ((0,), (1,), (2,), (3,)), (1,) * 4
    alone, apart = (
        CutProfile(tied, stages, ones, topology(2, bandwidth=(1e9,)), placement)
        for placement in (Placement.v_shaped(4), Placement.looped(4, 2))
    )
    assert [seconds for _, seconds in alone.ties] == [0.0]
    assert [seconds for _, seconds in apart.ties] == pytest.approx([100 / 1e9])
    assert apart.total_sent_bytes - alone.total_sent_bytes == 2 * 10 + 2 * 100


def test_stages_sharing_cores_work_on_messages_of_both_links():
    three = replace(profile(*map(layer, "abc")), message_work=MessageCpuTime(0.5, 0.1))
    stages, ones = ((0,), (1,), (2,)), (1, 1, 1)
    shared, own = (CutProfile(three, stages, ones, Topology((3,), (1e9,), cores=cores)) for cores in (2, None))
    assert shared.message_work_s(1) == pytest.approx([1.5, 3.0, 1.5])
    assert shared.message_work_s(2) == pytest.approx([1.0, 2.0, 1.0])
    assert own.message_work_s(1) == [0.0] * 3
