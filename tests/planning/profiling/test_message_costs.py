"""What formats of messages are measured to cost."""

from dataclasses import replace

import pytest

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.schedules.placement import Placement
from pipetrain.planning.costs.cut_profile import CutProfile
from pipetrain.planning.costs.topology import Topology
from pipetrain.planning.profile.profile import Profile, ProfiledLayer
from pipetrain.planning.profiling import message_costs
from pipetrain.runner.config.composition import composed
from pipetrain.zoo.messages import MessageFormat


class Own(MessageFormat):
    """A format of the user's own that does what its option says."""

    parts = 1

    def __init__(self, does):
        self.does = does

    def encode(self, tensor, _of):
        if self.does == "fail":
            raise KeyError("no such sample")
        return {"none": None, "two": (tensor, tensor)}.get(self.does, (tensor,))

    def decode(self, parts, _out, _of):
        return parts[0]


SIZE = 4 * 32 * 640
LAYERS = tuple(ProfiledLayer(f"l{i}", 1.0, 2.0, SIZE, 100, 5) for i in range(4))
PROFILE = Profile(LAYERS, tuple((i, i + 1) for i in range(3)), batch_size=32)
CUT = CutProfile(PROFILE, tuple((i,) for i in range(4)), (1,) * 4, Topology((4,), (1e9,)))


def measured(*words, profile=PROFILE, sources=None):
    settings = composed(["train.batch_size=32", "train.microbatches=4", *words])
    return message_costs.with_messages(profile, settings, sources)


def test_plain_messages_change_no_profile():
    assert measured() is PROFILE


def test_sizes_are_those_of_the_definitions():
    found = measured("messages.activations=int8", "messages.gradients=topk")
    forward, back = replace(CUT, profile=found).link_bytes
    assert forward == pytest.approx([(1 + 4 / 64) / 4 * SIZE] * 3)
    assert back == pytest.approx([0.1 * 8 / 4 * SIZE] * 3)
    for message in (found.layers[0].encoded_output, found.layers[0].encoded_gradient):
        assert message.encode_s > 0
        assert message.decode_s > 0
    assert measured("messages.activations=aq").layers[0].encoded_output.sent_bytes == (0.5 + 4 / 64) / 4 * SIZE


def test_a_direction_without_a_format_and_what_nothing_needs_are_plain():
    found = measured("messages.activations=bf16", sources={0, 2})
    assert [layer.encoded_output is None for layer in found.layers] == [False, True, False, True]
    assert [layer.encoded_gradient for layer in found.layers] == [None] * 4
    assert measured("messages.activations=bf16").layers[-1] == LAYERS[-1]


def test_links_in_a_process_encode_nothing():
    found = measured("messages.activations=bf16")
    placed = CutProfile(found, CUT.stages, CUT.replicas, Topology((2,), (1e9,)), Placement.v_shaped(4))
    message = found.layers[0].encoded_output
    forward, backward = placed.encoding_s
    assert forward == [message.encode_s, message.decode_s, message.encode_s, message.decode_s]
    assert backward == [0.0] * 4
    assert placed.total_sent_bytes == 2 * (0.5 * SIZE + SIZE)


def test_each_size_is_measured_once(monkeypatch):
    sizes = []
    monkeypatch.setattr(message_costs, "_measured", {})
    monkeypatch.setattr(message_costs, "_measure", lambda _, *size: (sizes.append(size), (0.5, 0.1, 0.2))[1])
    two = replace(PROFILE, layers=(replace(LAYERS[0], output_bytes=2 * SIZE), *LAYERS[1:]))
    for _ in range(2):
        found = measured("messages.activations=int8", "messages.gradients=int8", profile=two)
    assert len(sizes) == 2 * 2
    assert [each.encoded_output.sent_bytes for each in found.layers[:2]] == [SIZE, SIZE / 2]
    assert (found.layers[0].sender_s, found.layers[0].receiver_s) == pytest.approx((4 * 0.3, 4 * 0.3))


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("fail", r"KeyError: .*no such sample.* \(.*test_message_costs\.py:\d+\)"),
        ("none", "encode returned a NoneType, not a tuple of tensors"),
        ("two", "encode returned 2 tensors, and its class says parts = 1"),
        ("return", "decode returned a Tensor"),
    ],
)
def test_a_format_that_does_not_work_is_refused(does, told):
    words = "messages.activations=custom", f"messages.activations._target_={__name__}.Own"
    tensor = r"for a tensor of torch\.float32 and shape \(8, 640\): "
    with pytest.raises(ConfigError, match=rf"messages\.activations\._target_=.*Own: {tensor}.*{told}"):
        measured(*words, f"+messages.activations.does={does}")
