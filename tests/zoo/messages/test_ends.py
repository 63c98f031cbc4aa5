"""The ends of links: frames, what stays plain, what is counted."""

import copy
from types import SimpleNamespace

import pytest
import torch

from pipetrain.engine.data.minibatches import OnePass
from pipetrain.engine.errors import ConfigError, RunError
from pipetrain.engine.executors.messages.links import Spec
from pipetrain.engine.executors.messages.p2p import Outgoing, decode, encode
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.schedules import Kind
from pipetrain.engine.tensors import dense_copy
from pipetrain.zoo.messages import Direction, MessageFormat, MessageTensor
from pipetrain.zoo.messages.aq import AqSgd
from pipetrain.zoo.messages.bf16 import Bf16
from pipetrain.zoo.messages.ends import End, StageEnds
from pipetrain.zoo.messages.fp8 import Fp8
from pipetrain.zoo.messages.integers import Integers
from pipetrain.zoo.messages.meter import MessageMeter
from pipetrain.zoo.messages.tah import TahQuant
from pipetrain.zoo.messages.topk import TopK

CPU = torch.device("cpu")


class Halves(MessageFormat):
    """Sends half of each value, and the number of messages before; notes what it is told."""

    parts = 2
    keeps_state = needs_samples = True

    def __init__(self):
        self.sent = 0
        self.told = []

    def encode(self, tensor, of):
        self.sent += 1
        self.told.append(of)
        return tensor / 2, torch.tensor([self.sent])

    def decode(self, parts, out, of):
        self.told.append(of)
        torch.mul(parts[0], 2, out=out)


class Minibatches(OnePass):
    """Three minibatches of five samples, in reverse in odd epochs."""

    def __init__(self):
        super().__init__([])

    def minibatches(self, epoch):
        order = list(range(15))[:: -1 if epoch % 2 else 1]
        return [order[first : first + 5] for first in (0, 5, 10)]


def link(form, direction=Direction.ACTIVATIONS, takes=None):
    """The ends of a stage that sends and of one that receives."""
    return [End(direction, 4, copy.deepcopy(form), takes, sends=sends) for sends in (True, False)]


def stage(end, error_every=None, **changes):
    meter = MessageMeter(CPU, error_every)
    sends = [end.direction] if end.sends else []
    found = StageEnds([end], sends, 3, meter, **{"scaled": False, "evaluates": False, **changes})
    found.begin(Minibatches(), DrainInterval(epoch=1, first=1, last=3, start=4), 2)
    return found


OF = MessageTensor((0, 0, 4, 2, 1))
TENSORS = (
    torch.randn(3, 4, 5).transpose(0, 2),
    torch.arange(3),
    torch.tensor([True, False]),
    torch.tensor(2.0),
    torch.empty(2, 0),
    torch.randn(2, 3, 4, 4, dtype=torch.float64).to(memory_format=torch.channels_last),
    torch.randn(2, 3, dtype=torch.complex64),
    torch.empty(0, 3),
    torch.randn(6, dtype=torch.float16),
)


def crosses(tensors):
    """The tensors as a message delivers them: its header has only shapes, strides and types."""
    specs = decode(encode([Spec.of(tensor) for tensor in tensors]))
    arrived = [spec.empty(CPU) for spec in specs]
    for source, target in zip(tensors, arrived, strict=True):
        target.copy_(source)
    return tuple(arrived)


@pytest.mark.parametrize("way", [crosses, lambda tensors: tuple(map(dense_copy, tensors))])
def test_tensors_arrive_with_their_shapes_strides_and_types(way):
    sender, receiver = link(Halves())
    found = tuple(receiver.decode(way(tuple(sender.encode(TENSORS, OF))), OF))
    assert len(found) == len(TENSORS)
    for sent, arrived in zip(TENSORS, found, strict=True):
        assert torch.equal(sent, arrived)
        assert (sent.dtype, sent.stride()) == (arrived.dtype, arrived.stride())
    encoded = [of.place for of in sender.format.told]
    assert encoded == [0, 5, 8]  # floating, with dimensions and elements
    assert [of.key for of in receiver.format.told] == [(*OF.key, place) for place in encoded]


def test_what_is_not_dense_is_copied_first():
    sender, receiver = link(Halves())
    strided = torch.randn(4, 6)[:, ::2]
    (found,) = receiver.decode(tuple(sender.encode((strided,), OF)), OF)
    assert torch.equal(found, strided)
    assert found.is_contiguous()


def test_a_frame_takes_no_bytes():
    sender, _ = link(Halves())
    sent = tuple(sender.encode((torch.randn(3, 4),), OF))
    assert [tensor.nbytes for tensor in sent] == [0, 48, 8]


def test_tensors_without_a_gradient_stay_plain():
    sender, receiver = link(Halves(), takes=(True, False, False))
    tensors = torch.randn(2, 3), torch.randn(2, 3), torch.empty(2, 0)
    sent = tuple(sender.encode(tensors, OF))
    assert sent[3] is tensors[1]
    assert all(map(torch.equal, receiver.decode(sent, OF), tensors))
    assert [of.place for of in sender.format.told] == [0]
    tuple(sender.encode((*tensors, tensors[0]), OF))  # one more, as in training alone
    assert [of.place for of in sender.format.told[1:]] == [0, 1, 3]


def test_another_number_of_parts_than_announced_is_told():
    (sender, _) = link(Halves())
    sender.format.parts = 3
    with pytest.raises(RunError, match=r"messages\.activations=custom: encode returned 2 tensors, .* parts = 3"):
        tuple(sender.encode((torch.ones(2),), OF))


@pytest.mark.parametrize(
    ("returned", "told"),
    [(torch.ones(2), "a Tensor"), (None, "a NoneType"), ((torch.ones(2), 3), r"a tuple \(Tensor, int\)")],
)
def test_what_is_no_tuple_of_tensors_is_told(returned, told):
    (sender, _) = link(Halves())
    sender.format.encode = lambda _tensor, _of: returned
    with pytest.raises(RunError, match=f"encode returned {told}, not a tuple of tensors"):
        tuple(sender.encode((torch.ones(2),), OF))


def test_what_decode_returns_in_place_of_writing_it_is_told():
    sender, receiver = link(Halves())
    sent = tuple(sender.encode((torch.ones(2),), OF))
    receiver.format.decode = lambda parts, _out, _of: parts[0] * 2
    with pytest.raises(RunError, match=r"messages\.activations=custom: decode returned a Tensor; it writes .* `out`"):
        tuple(receiver.decode(sent, OF))


def test_both_ends_know_the_samples_of_a_microbatch():
    sender, receiver = map(stage, ends := link(Halves()))
    for t, j in ((4, 0), (4, 1), (5, 1)):
        tensors = (torch.randn(3, 2),)
        receiver.decode(Kind.FORWARD, (t, j), sender.encode(Kind.FORWARD, (t, j), tensors))
    told = ends[0].format.told
    assert told == ends[1].format.told
    assert [of.samples for of in told] == [[9, 8, 7], [6, 5], [1, 0]]
    assert [(of.epoch, of.minibatch, of.key) for of in told][-1] == (1, 5, (3, 0, 4, 5, 1, 0))


def test_a_recomputation_sends_what_the_forward_has_sent():
    sender, _ = link(Halves())
    ends = stage(sender)
    for kind in (Kind.FORWARD, Kind.RECOMPUTATION):
        ends.encode(kind, (4, 1), (torch.ones(2),))
    assert sender.format.told[0] == sender.format.told[1]


def test_links_without_a_format_carry_the_tensors_themselves():
    ends, tensors = stage(link(Halves())[0]), (torch.randn(2, 3),)
    assert ends.encode(Kind.BACKWARD, (4, None), tensors) is tensors
    assert ends.decode(Kind.FORWARD, (4, 0), tensors) is tensors
    assert ends.of_evaluation(tensors, sends=True) is tensors
    assert ends.report() == {}


def test_the_factor_of_a_scaled_loss_stays_plain_and_is_known():
    sender, receiver = (end := link(Halves(), Direction.GRADIENTS))
    tensors = torch.randn(2, 3), torch.tensor(1024.0)
    sent = stage(sender, scaled=True).encode(Kind.BACKWARD, (4, None), tensors)
    found = stage(receiver, scaled=True).decode(Kind.BACKWARD, (4, None), sent)
    assert all(map(torch.equal, found, tensors))
    (of,) = end[0].format.told
    assert (of.loss_scale, of.samples) == (tensors[1], None)


def test_an_evaluation_leaves_the_state_of_a_link():
    sender, receiver = link(Halves())
    ends = [stage(end, evaluates=True) for end in (sender, receiver)]
    tensors = (torch.randn(2, 3),)
    for _ in range(2):
        sent = ends[0].of_evaluation(tensors, sends=True)
        assert sent[-1].item() == 1
        assert torch.equal(ends[1].of_evaluation(sent, sends=False)[0], tensors[0])
    assert (sender.format.sent, sender.format.told) == (0, [])


def test_bytes_are_those_of_the_tensors_sent():
    ends, sent, plain = stage(link(Halves())[0], error_every=2), [], []
    for message in ((4, 0), (4, 1), (5, 0), (5, 1)):
        plain += (tensors := (torch.randn(3, 2), torch.arange(3)))
        sent += ends.encode(Kind.FORWARD, message, tensors)
    report = ends.report()
    assert report["activations_bytes"] == sum(tensor.nbytes for tensor in sent) / 2
    assert report["activations_plain_bytes"] == sum(tensor.nbytes for tensor in plain) / 2
    assert report["activations_error"] == 0
    assert report["encode_s"] > 0


class CountingLink:
    """Counts the bytes of what it is given, apart from headers."""

    groups = SimpleNamespace(headers=None)

    def __init__(self):
        self.bytes = 0

    def start_sending(self, _header, _group):
        return lambda: None

    def send(self, tensor):
        self.bytes += tensor.nbytes
        return tensor, lambda: None


@pytest.mark.parametrize("form", [Bf16(), Integers(4), Integers(3), TopK(0.2), TahQuant(tile=4), AqSgd(), Fp8()])
def test_a_link_carries_as_many_bytes_as_are_counted(form):
    ends, wire = stage(link(form)[0]), CountingLink()
    outgoing = Outgoing(wire, "activations")
    for t, j in ((4, 0), (4, 1), (5, 0), (5, 1)):
        tensors = torch.randn(3 - j, 7, 9), torch.arange(3)
        outgoing.send(j, ends.encode(Kind.FORWARD, (t, j), tensors))
    assert wire.bytes == 2 * ends.report()["activations_bytes"] > 0


def test_plain_messages_beside_formats_are_counted():
    (end, _) = link(Halves())
    ends = StageEnds([end], [*Direction], 3, MessageMeter(CPU), scaled=False, evaluates=False)
    for _ in range(2):
        ends.encode(Kind.BACKWARD, (4, None), (torch.randn(3, 2),))
    report = ends.report()
    assert report["gradients_bytes"] == report["gradients_plain_bytes"] == 48


def test_the_error_is_that_of_what_arrives():
    class Rounds(MessageFormat):
        parts = 1

        def encode(self, tensor, _of):
            return (tensor.round(),)

        def decode(self, parts, out, _of):
            out.copy_(parts[0])

    ends, errors = stage(link(Rounds())[0], error_every=2), []
    for t in (4, 5):
        tensor = torch.randn(30)
        ends.encode(Kind.FORWARD, (t, 0), (tensor,))
        errors.append(((tensor.round() - tensor).norm() / tensor.norm()).item())
    assert ends.report()["activations_error"] == pytest.approx(errors[0])


@pytest.mark.parametrize("mirrors", [False, True])
def test_the_time_of_encoding_leaves_out_comparisons(monkeypatch, mirrors):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("time.perf_counter", lambda: clock.now)

    class Slow(MessageFormat):
        parts = 1

        def encode(self, tensor, _of):
            clock.now += 1
            return (tensor,)

        def decode(self, parts, out, _of):
            clock.now += 10
            out.copy_(parts[0])

    Slow.mirrors = mirrors
    ends = stage(link(Slow())[0], error_every=2)
    for t in (4, 5):
        ends.encode(Kind.FORWARD, (t, 0), (torch.randn(3), torch.randn(2)))
    assert ends.report()["encode_s"] == (22 if mirrors else 2)
    assert ends.report()["activations_error"] == 0


def test_state_has_the_name_of_cut_direction_end_and_format():
    (sender, receiver) = map(stage, link(Halves()))
    assert sender.state().keys() == {"4.activations.sent.Halves"}
    assert receiver.state().keys() == {"4.activations.received.Halves"}


def test_minibatches_of_an_iterable_have_no_ids():
    (sender, _) = link(Halves())
    ends = StageEnds([sender], [], 0, MessageMeter(CPU), scaled=False, evaluates=False)
    with pytest.raises(ConfigError, match="needs the ids of samples"):
        ends.begin(OnePass([]), DrainInterval.whole(0), 1)
