"""Devices and levels that settings describe."""

import re
from math import inf

import pytest
from support.refusals import assert_refused

from pipetrain.planning.costs.topology import Device, DeviceRow, Topology
from pipetrain.runner.config.schema import TopologyConfig

TWO_MACHINES = Topology((4, 2), (30e9, 3e9))


def test_two_devices_have_bandwidth_of_lowest_common_level():
    pairs = [(0, 3), (3, 0), (4, 7), (3, 4), (0, 7)]
    assert [TWO_MACHINES.bandwidth_between(a, b) / 1e9 for a, b in pairs] == [30, 30, 30, 3, 3]


def test_settings_become_levels_innermost_first():
    topology = Topology.of(TopologyConfig(workers=[8, 2], gigabytes_per_s=[30.0, 3.125]))
    assert (topology.workers, topology.bytes_per_s) == ((8, 2), (30e9, 3.125e9))
    assert (topology.num_devices, topology.devices, topology.uniform) == (16, (), True)


def test_measured_bandwidth_serves_where_none_is_given():
    assert Topology.of(TopologyConfig(devices=3), measured=2e9) == Topology((3,), (2e9,))
    assert Topology.of(TopologyConfig(workers=[2, 2]), measured=2e9).bytes_per_s == (2e9, 2e9)


def test_devices_have_speeds_and_memory_of_their_own():
    config = TopologyConfig(devices=2, gigabytes_per_s=[1.0], speeds=[1.0, 0.5], memory_gigabytes=[16, 8.5])
    assert Topology.of(config).devices == (Device(1.0, 16e9), Device(0.5, 8.5e9))
    same = TopologyConfig(devices=2, gigabytes_per_s=[1.0], memory_gigabytes=16)
    assert Topology.of(same).devices == (Device(1.0, 16e9),) * 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": []}, "topology.workers=[]: must have at least one level, such as [4]"),
        ({"workers": [4, 0]}, "topology.workers=0: must be a whole number of at least 1"),
        (
            {"workers": [4, 2], "devices": 16},
            "topology.workers=[4, 2]: 8 devices, and topology.devices=16; leave one out",
        ),
        ({"gigabytes_per_s": None}, "the profile has no measured bandwidth; a number for each level, such as [1.25]"),
        ({"gigabytes_per_s": [0.0]}, "topology.gigabytes_per_s=0.0: must be a number above 0"),
        (
            {"workers": [4, 2]},
            "topology.gigabytes_per_s=[1.0]: must have 2 numbers, one for each level of topology.workers=[4, 2]",
        ),
        ({"devices": 3, "speeds": [1.0, 2.0]}, "topology.speeds=[1.0, 2.0]: 2 numbers for 3 devices"),
        ({"speeds": [1.0, 0.0]}, "topology.speeds=0.0: must be a number above 0"),
        ({"memory_gigabytes": "much"}, "topology.memory_gigabytes=much: must be a number above 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(given, message):
    assert_refused(re.escape(message), Topology.of, TopologyConfig(**{"gigabytes_per_s": [1.0], **given}))


@pytest.mark.parametrize(
    ("memory", "rooms"), [((16.0, 8.0, 4.0), [8.0, 4.0]), ((16.0, None, 4.0), [16.0, 4.0]), ((None,) * 3, [inf, inf])]
)
def test_each_stage_has_the_memory_of_its_smallest_device(memory, rooms):
    topology = Topology((3,), (1.0,), tuple(Device(memory_bytes=each) for each in memory))
    assert DeviceRow(topology, (2, 1)).memory_bytes == rooms
