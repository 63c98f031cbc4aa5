"""Messages between processes: headers, ragged tuples of any dtype and memory order, and shapes that change."""

import datetime
import weakref

import pytest
import torch
import torch.distributed as dist
from support.forking import forked
from torch import nn

from pipetrain.engine.errors import LostStageError, RunError
from pipetrain.engine.executors.messages.links import LinkGroups, Links, Spec
from pipetrain.engine.executors.messages.p2p import Incoming, Outgoing, decode, encode
from pipetrain.engine.executors.messages.transport import Transport

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_header_holds_shape_strides_and_dtype(dtype):
    specs = (
        Spec((2, 3), (3, 1), dtype),
        Spec((4, 1, 2), (1, 9, 4), dtype),
        Spec((), (), dtype),
        Spec((0, 5), (5, 1), dtype),
    )
    header = encode(specs)
    assert header.dtype == torch.int64
    assert decode(header) == specs


def test_headers_have_one_length_whatever_they_hold():
    assert encode([Spec((2,), (1,), torch.bool)]).shape == encode([Spec((1,) * 8, (1,) * 8, torch.int8)] * 20).shape


def test_spec_of_a_tensor_makes_an_empty_tensor_like_it():
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    made = Spec.of(tensor).empty(torch.device("cpu"))
    assert (made.shape, made.stride(), made.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)


def test_too_many_tensors_for_header_are_refused_with_number():
    specs = [Spec((1, 2, 3, 4), (24, 12, 4, 1), torch.float32)] * 2000
    with pytest.raises(ValueError, match="2000 tensors"):
        encode(specs)


def test_header_that_is_full_decodes():
    specs = (Spec((1, 2), (2, 1), torch.float32),) * 170
    assert decode(encode(specs)) == specs


def messages():
    """(key, tensors) in the order of sending; keys repeat, interleaved. Without a key shapes vary."""
    torch.manual_seed(0)
    found = []
    for turn in range(3):
        lstm = nn.LSTM(3, 4, batch_first=True)(torch.randn(2, 5, 3).transpose(0, 1).contiguous().transpose(0, 1))[0]
        found += [
            (("evaluation", 4), (torch.randn(4, 3) + turn, torch.rand(4) > 0.5, torch.arange(4))),
            (2, (torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), torch.tensor(turn + 0.5))),
            (1, (torch.empty(0, 7), torch.randn(1, 3), torch.empty(0, dtype=torch.bool))),
            ("lstm", (lstm, torch.randn(3, 4).t(), torch.randn(6)[1:4])),
            ("loose", (torch.randn(3, 1).expand(3, 4), torch.randn(4, 6)[:, :3], torch.randn(10)[::2])),
            ("nothing", ()),
            (
                "types",
                (
                    torch.randn(3).bfloat16(),
                    torch.randn(2).half(),
                    torch.randn(2, dtype=torch.complex64),
                    torch.ones(2).double(),
                ),
            ),
            ("only empty", (torch.empty(3, 0),)),
            (None, (torch.randn(2 + turn, 3), torch.arange(turn))),
            (None, (torch.randn(2, 5 - turn),)),
        ]
    return found


def connected(rank, folder):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60)
    )
    return {way: dist.new_group(backend="gloo") for way in ("there", "back")}


def link(groups, way, rank):
    links = Links(Transport(torch.device("cpu")))
    return links.to(1 - rank, 1 - rank, LinkGroups(groups[way], groups[way]))


def sender(groups, folder):
    out, back = Outgoing(link(groups, "there", 0), "activations"), Incoming(link(groups, "back", 0), "gradients")
    back.expect(key for key, _ in messages())
    for key, tensors in messages():
        out.send(key, tensors)  # all of them before any is taken: a send waits for nobody
    returned = [back.take() for _ in messages()]
    out.settle(0)
    torch.save(returned, f"{folder}/returned")
    error = "none"
    try:
        out.send(2, (torch.randn(2, 3, 4, 5), torch.tensor(0.5)))
    except RunError as caught:
        error = str(caught)
    (folder / "error").write_text(error)


def receiver(groups, folder):
    inbox, out = Incoming(link(groups, "there", 1), "activations"), Outgoing(link(groups, "back", 1), "gradients")
    inbox.expect([key for key, _ in messages()][:5])
    inbox.expect([key for key, _ in messages()][5:])
    received = []
    for key, _ in messages():
        received.append(inbox.take())
        out.send(key, received[-1])
        out.settle(2)
    out.settle(0)
    torch.save([[(t, t.stride()) for t in tensors] for tensors in received], f"{folder}/received")
    pointers = [t.data_ptr() for tensors in received for t in tensors if t.numel()]
    (folder / "buffers").write_text(f"{len(pointers)} {len(set(pointers))}")
    dist.barrier()
    inbox.expect([2])
    try:
        inbox.take()
        lost = "taken"
    except LostStageError as error:
        lost = str(error)
    (folder / "lost").write_text(lost)


LISTS = [[2, 2, 1, 1], [1, 2, None], [None, 1], [2, 2, 2, 2, 2]]
"""Messages expected in successive intervals, by key: 1 and 2 have fixed shapes, other messages have none."""
SENT = [2, 0, 1, 5]
"""How many of them are sent before the interval ends, sometimes early."""


def sent_early(interval, i):
    key = LISTS[interval][i]
    return torch.full((key or 3 + i, 2), 10.0 * interval + i), torch.tensor(i)


def end_early(rank, groups, folder):
    out, inbox = Outgoing(link(groups, "there", rank), "activations"), Incoming(link(groups, "there", rank), "outputs")
    taken = []
    for interval, (keys, count) in enumerate(zip(LISTS, SENT, strict=True)):
        if rank == 0:
            out.begin(keys)
            for i in range(count):
                out.send(keys[i], sent_early(interval, i))
            out.fill()
            out.settle(0)
        else:
            inbox.begin(keys)
            taken += [inbox.take() for _ in range(count)]
            inbox.discard()
    torch.save(taken, f"{folder}/early-{rank}")


def exchange(rank, folder):
    groups = connected(rank, folder)
    end_early(rank, groups, folder)
    if rank == 0:
        sender(groups, folder)
        dist.barrier()  # then it ends, while the other one waits for a message
    else:
        receiver(groups, folder)


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exchange")
    forked(exchange, folder, count=2)
    return folder


def same(ours, theirs):
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(ours, theirs)


def test_ragged_messages_of_all_dtypes_arrive_whole_and_in_order(exchanged):
    received = torch.load(exchanged / "received", weights_only=False)
    assert len(received) == len(messages())
    for got, (key, sent) in zip(received, messages(), strict=True):
        assert len(got) == len(sent), key
        assert all(same(a, b) for (a, _), b in zip(got, sent, strict=True)), key


def test_messages_of_an_interval_after_one_that_ended_early_arrive(exchanged):
    taken = torch.load(exchanged / "early-1", weights_only=False)
    sent = [sent_early(interval, i) for interval, count in enumerate(SENT) for i in range(count)]
    assert len(taken) == len(sent)
    for got, tensors in zip(taken, sent, strict=True):
        assert all(same(a, b) for a, b in zip(got, tensors, strict=True))


def test_dense_tensors_keep_strides_and_others_are_contiguous(exchanged):
    received = torch.load(exchanged / "received", weights_only=False)
    for got, (key, sent) in zip(received, messages(), strict=True):
        for (_, stride), tensor in zip(got, sent, strict=True):
            if tensor.numel():
                assert stride == (tensor.contiguous() if key == "loose" else tensor).stride(), key


def test_messages_in_both_directions_arrive(exchanged):
    returned = torch.load(exchanged / "returned", weights_only=False)
    for got, (key, sent) in zip(returned, messages(), strict=True):
        assert all(same(a, b) for a, b in zip(got, sent, strict=True)), key


def test_messages_never_share_their_buffers(exchanged):
    held, different = (exchanged / "buffers").read_text().split()
    assert held == different


def test_shape_that_changes_for_one_key_is_refused_by_the_sender(exchanged):
    error = (exchanged / "error").read_text()
    assert "activations" in error
    assert "(2, 3, 4, 4)" in error
    assert "(2, 3, 4, 5)" in error
    assert "`batches`" in error


def test_receiving_from_a_process_that_ended_names_the_process(exchanged):
    assert (exchanged / "lost").read_text() == "lost the connection to stage 0"


class Polled:
    """A link whose sends end when told to."""

    groups = LinkGroups(None, None)
    tells_ends = True

    def __init__(self):
        self.sent, self.ended, self.waits = [], 0, 0

    def start_sending(self, _header, _group):
        return lambda: None

    def send(self, tensor):
        self.sent.append(weakref.ref(tensor))
        return tensor, len(self.sent)

    def has_ended(self, transfer):
        return callable(transfer) or transfer <= self.ended

    def wait(self, transfers, _what):
        self.waits += len(list(transfers))


def test_buffers_that_have_arrived_are_freed_before_they_must_have():
    link = Polled()
    out = Outgoing(link, "activations")
    for ended, alive in ((0, [1, 1]), (1, [0, 1, 1]), (1, [0, 1, 1, 1]), (4, [0, 0, 0, 0, 1])):
        for _ in range(max(0, len(alive) - len(link.sent))):
            out.send("key", (torch.ones(3),))
        link.ended = ended
        out.settle(4)
        assert [each() is not None for each in link.sent] == [bool(each) for each in alive]
    assert not link.waits
    out.settle(0)
    assert link.waits == 1


def test_header_that_may_be_on_its_way_keeps_no_payload():
    link = Polled()
    link.has_ended = lambda transfer: not callable(transfer)  # Gloo does not tell of the header
    out = Outgoing(link, "activations")
    for _ in range(3):
        out.send(None, (torch.ones(3),))
        out.settle(4)
    assert [each() for each in link.sent] == [None] * 3
    assert (out.pending_bytes, link.waits) == (0, 0)
    out.settle(0)
    assert link.waits == 3


def test_small_tensors_of_a_message_travel_together():
    link, sizes = Polled(), []
    link.send = lambda tensor: sizes.append(tensor.nbytes) or (tensor, 1)
    Outgoing(link, "activations").send("key", (torch.ones(2), torch.ones(9000), torch.empty(0), torch.tensor(3)))
    assert sizes == [8 + 8, 36000]
    Outgoing(link, "activations").send("key", (torch.ones(9000), torch.ones(3)))
    assert sizes[2:] == [12, 36000]


def test_bytes_of_messages_under_way_are_those_that_nothing_else_keeps():
    link, kept = Polled(), torch.ones(5)
    out = Outgoing(link, "activations")
    out.send("key", (torch.ones(3), kept), {kept.untyped_storage().data_ptr()})
    assert out.pending_bytes == 12 + 20  # in one transfer, with a copy
    link.ended = 1
    out.settle(4)
    assert out.pending_bytes == 0
    kept = torch.ones(9000)
    out.send("alone", (torch.ones(3), kept), {kept.untyped_storage().data_ptr()})
    assert out.pending_bytes == 12
    out.send("alone", (torch.ones(3), kept))
    assert out.pending_bytes == 12 + 12 + 36000
    out.settle(0)
    assert out.pending_bytes == 0
