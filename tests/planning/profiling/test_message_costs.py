"""What formats of messages are measured to cost."""

import pytest

from pipetrain.engine.schedules.placement import Placement
from pipetrain.planning.costs.cut_profile import CutProfile
from pipetrain.planning.costs.topology import Topology
from pipetrain.planning.profile.profile import Profile, ProfiledLayer
from pipetrain.planning.profiling.message_costs import message_costs
from pipetrain.runner.config.composition import composed

LAYERS = tuple(ProfiledLayer(f"l{i}", 1.0, 2.0, 4 * 32 * 640, 100, 5) for i in range(4))
PROFILE = Profile(LAYERS, tuple((i, i + 1) for i in range(3)), batch_size=32)
CUT = CutProfile(PROFILE, tuple((i,) for i in range(4)), (1,) * 4, Topology((4,), (1e9,)))


def costs(*words, cut=CUT):
    return message_costs(composed(["train.batch_size=32", "train.microbatches=4", *words]), cut)


def test_plain_messages_have_no_costs():
    assert costs() is None


def test_shares_are_those_of_the_definitions():
    found = costs("messages.activations=int8", "messages.gradients=topk")
    assert found.forward.share == pytest.approx([(1 + 4 / 64) / 4] * 3)
    assert found.backward.share == pytest.approx([0.1 * 8 / 4] * 3)
    assert all(seconds > 0 for each in (found.forward, found.backward) for seconds in (*each.encode_s, *each.decode_s))
    assert found.mean_share == pytest.approx([(1.0625 / 4 + 0.2) / 2] * 3)
    assert costs("messages.activations=aq").forward.share == pytest.approx([(0.5 + 4 / 64) / 4] * 3)


def test_a_direction_without_a_format_and_links_in_a_process_are_plain():
    placed = CutProfile(PROFILE, CUT.stages, CUT.replicas, Topology((2,), (1e9,)), Placement.v_shaped(4))
    found = costs("messages.activations=bf16", cut=placed)
    assert found.forward.share == [0.5, 1.0, 0.5]
    assert (found.forward.encode_s[1], found.forward.decode_s[1]) == (0.0, 0.0)
    assert found.backward.share == [1.0, 1.0, 1.0]
    assert found.backward_s == [0.0] * 4
