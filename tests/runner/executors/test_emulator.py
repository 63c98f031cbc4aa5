"""The rules of the emulated GPU and of the emulated NCCL: each is shown to bite."""

import inspect
import os
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.fake_gpu import EXIT_CODE, logged_errors, logged_waits
from support.forking import forked
from torch import nn
from torch.multiprocessing import ProcessExitedException

from pipetrain.engine.device_queue import HostCopies, lock_numbers, page_locked
from pipetrain.engine.executors.messages.links import LinkGroups, Links
from pipetrain.engine.executors.messages.transport import Transport, agreed_transport

pytestmark = pytest.mark.slow

DEVICE = torch.device("fakegpu", 0) if hasattr(torch, "fakegpu") else "fakegpu:0"  # fakegpu exists only in the workers


@pytest.fixture
def emulated(tmp_path, monkeypatch):
    """Calls a function in processes that have a GPU each; environment variables go by name."""

    def run(function, *arguments, count=1, **environment):
        settings = {
            "PIPETRAIN_EMULATED_GPUS": "1",
            "PIPETRAIN_EMULATOR_LOG": str(tmp_path / "log"),
            "STRICT_NCCL_SECONDS": "20",
            "STRICT_NCCL_LATE_MS": "1",
        }
        for name, value in {**settings, **environment}.items():
            monkeypatch.setenv(name, value)
        forked(function, *arguments, count=count)

    run.log = tmp_path / "log"
    return run


@pytest.fixture
def refused(emulated):
    """The same for processes that break a rule; why they gave up."""

    def run(function, *arguments, count=1, **environment):
        environment.setdefault("STRICT_NCCL_SECONDS", "2")
        with pytest.raises(ProcessExitedException) as caught:
            emulated(function, *arguments, count=count, **environment)
        assert caught.value.exit_code == EXIT_CODE
        return logged_errors(emulated.log)

    return run


def gpu():
    return torch.get_device_module(DEVICE)


def held(stream):
    """Holds up a stream until the event that is returned."""
    event = threading.Event()
    stream.put(lambda: event.wait(30))
    return event


def garbage(x):
    return bool((x.contiguous().view(torch.uint8) == 0xA5).all())


def check_each(_rank, checks):
    """(function, arguments) of each: in one process, as a start takes longer than a check."""
    for check, *arguments in checks:
        check(*arguments)


# -- streams and memory ------------------------------------------------------------------------------------------------


def check_order_of_streams(waits):
    """Streams are in order only where one waits for another."""
    side, x = gpu().Stream(DEVICE), torch.zeros(4, device=DEVICE)
    gpu().synchronize()
    let_go = held(side)
    with gpu().stream(side):
        x.fill_(1.0)
        assert gpu().current_stream(DEVICE) is side
    if waits == "stream":
        gpu().current_stream(DEVICE).wait_stream(side)
    elif waits == "event":
        event = gpu().Event()
        event.record(side)
        event.wait(gpu().current_stream(DEVICE))
    y = x + 1
    if waits:
        assert not gpu().current_stream(DEVICE).query()
        let_go.set()
    assert y.tolist() == ([2.0] * 4 if waits else [1.0] * 4)
    let_go.set()


def check_lent_memory(lends):
    """Memory of another stream is garbage unless it is lent."""
    side, current = gpu().Stream(DEVICE), gpu().current_stream(DEVICE)
    with gpu().stream(side):
        x = torch.ones(64, device=DEVICE)
    current.wait_stream(side)
    side.synchronize()
    let_go = held(current)
    if lends:
        x.record_stream(current)
    y = x.view(8, 8) * 2
    del x
    with gpu().stream(side):
        torch.empty(1, device=DEVICE)  # another allocation may now have that memory
    side.synchronize()
    let_go.set()
    assert bool((y.cpu() == 2).all()) == lends


def check_fresh_memory():
    """It is garbage, and dead memory is released."""
    x = torch.empty(7, device=DEVICE)
    assert garbage(x.cpu())
    y = x.fill_(1.0) + 1
    del x
    torch.empty(1, device=DEVICE)
    assert bool((y.cpu() == 2).all())  # its own stream had read the memory before
    from support import fake_gpu

    for _ in range(50):
        z = torch.zeros(10_000, device=DEVICE)
    assert len(fake_gpu.blocks) < 10
    assert gpu().max_memory_allocated(DEVICE) < 200_000
    del z


def check_full_device(_rank, _folder):
    kept = [torch.zeros(1000, device=DEVICE)]
    with pytest.raises(torch.OutOfMemoryError):
        kept.append(torch.zeros(100_000, device=DEVICE))


def check_events():
    """Each has the time when the device gets there."""
    first, last = gpu().Event(enable_timing=True), gpu().Event(enable_timing=True)
    first.record(gpu().current_stream(DEVICE))
    let_go = held(gpu().current_stream(DEVICE))
    last.record(gpu().current_stream(DEVICE))
    assert not last.query()
    time.sleep(0.05)
    let_go.set()
    last.synchronize()
    assert first.elapsed_time(last) > 40


def check_late_error():
    """The error of an operation is heard of when the host waits."""
    table = torch.zeros(3, 2, device=DEVICE)
    found = table[torch.tensor([7], device=DEVICE)]  # queued: nobody has looked at the number yet
    with pytest.raises(torch.AcceleratorError, match="out of bounds"):
        found.cpu()


def check_devices():
    """An operation on two devices is an error."""
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device=DEVICE) + torch.ones(2)
    assert (torch.ones(2, device=DEVICE) * torch.tensor(3.0)).tolist() == [3, 3]


def check_streams_of_links():
    """All receives of a process share a stream, as one is under way at a time."""
    from support.fake_gpu.streams import Stream

    before = len(Stream.all)
    links = Links(Transport(torch.device(DEVICE), "nccl"))
    made = [links.to(peer, 0, LinkGroups(None, None)) for peer in range(30)]
    assert len(Stream.all) == before + 1
    assert len({id(link._sent) for link in made}) == 30
    assert len(Stream.all) == before + 31


STREAMS_AND_MEMORY = (
    (check_fresh_memory,),  # first: it looks at all memory
    *((check_order_of_streams, waits) for waits in ("stream", "event", None)),
    *((check_lent_memory, lends) for lends in (True, False)),
    (check_events,),
    (check_devices,),
    (check_streams_of_links,),
    (check_late_error,),  # last: the device fails for good
)


def test_streams_and_memory_are_as_a_gpu_has_them(emulated):
    emulated(check_each, STREAMS_AND_MEMORY)


# -- waits of the host -------------------------------------------------------------------------------------------------


def check_shared_weight():
    """A weight that layers share is shared on the device."""
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    one.weight = other.weight
    weight = one.weight
    one.to(DEVICE)
    other.to(DEVICE)
    assert one.weight is weight
    assert other.weight is weight
    assert weight.device.type == "fakegpu"


def check_unasked_result():
    """Attention on padded text has the bits of the CPU."""
    layer = nn.TransformerEncoderLayer(4, 2, 4, dropout=0.0, batch_first=True).eval()
    x = torch.randn(2, 3, 4)
    padded = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad():
        expected = layer(x, src_key_padding_mask=padded)
        found = layer.to(DEVICE)(x.to(DEVICE), src_key_padding_mask=padded.to(DEVICE))
    assert torch.equal(found.cpu()[~padded], expected[~padded])


def number_of_this_line():
    return inspect.currentframe().f_back.f_lineno


def check_counted_waits(_rank):
    from support import fake_gpu

    fake_gpu.watched.append(str(Path(__file__).parent) + "/")
    lock_numbers()
    x, host, copy = torch.ones(3, device=DEVICE), torch.ones(3), torch.ones(3).pin_memory()
    event, memory = gpu().Event(), [page_locked(64)]

    def counted(act):
        fake_gpu.waits.clear()
        act()
        return {kind: n for (kind, _), n in fake_gpu.waits.items()}

    assert counted(lambda: x.sum().item()) == {"implicit": 1}
    assert counted(lambda: x.nonzero()) == {"implicit": 1}
    assert counted(lambda: x[x > 0]) == {"implicit": 1}
    assert counted(lambda: x.cpu()) == {"implicit": 1}
    assert counted(lambda: host.copy_(x, non_blocking=True)) == {"implicit": 1}
    assert counted(lambda: copy.copy_(x)) == {"implicit": 1}
    assert counted(lambda: copy.to(DEVICE)) == {"implicit": 1}
    assert counted(lambda: host.to(DEVICE, non_blocking=True)) == {"pageable": 1}
    for late in (
        lambda: copy.to(DEVICE, non_blocking=True),
        lambda: copy.copy_(x, non_blocking=True),
        lambda: x.to("cpu", non_blocking=True),
        lambda: HostCopies([x], memory),
        lambda: torch.nn.functional.dropout(x @ torch.rand(3, 3, device=DEVICE)).relu_().sum(),
        lambda: event.record(),
    ):
        assert counted(late) == {}
    assert counted(lambda: HostCopies([x], memory).take()) == {"event": 1}
    assert counted(event.synchronize) == {"event": 1}
    assert counted(gpu().current_stream(DEVICE).synchronize) == {"stream": 1}
    assert counted(gpu().synchronize) == {"device": 1}
    longer = torch.ones(999)
    assert counted(lambda: longer.pin_memory()) == {"device": 1}
    assert counted(lambda: longer.pin_memory()) == {}
    kept = longer.pin_memory()
    assert counted(lambda: longer.pin_memory()) == {"device": 1}
    assert kept.is_pinned()
    fake_gpu.waits.clear()
    x.sum().item(), Path(os.environ["WHERE"]).write_text(str(number_of_this_line()))


def test_waits_of_the_host_are_counted_by_kind_and_line(emulated, tmp_path):
    emulated(_with_where, str(tmp_path / "where"))
    expected = f"executors/test_emulator.py:{(tmp_path / 'where').read_text()}"
    assert logged_waits(emulated.log) == {expected: 1}


def _with_where(rank, path):
    os.environ["WHERE"] = path
    check_counted_waits(rank)


def check_late_copies():
    """Copies of page-locked memory read and write it late."""
    memory, y = torch.zeros(4).pin_memory(), torch.ones(4).pin_memory()
    assert memory.is_pinned()
    assert not torch.zeros(4).is_pinned()
    let_go = held(gpu().current_stream(DEVICE))
    x = memory.to(DEVICE, non_blocking=True)
    memory.fill_(5.0)  # too early: the copy has yet to read it
    y.copy_(x, non_blocking=True)
    assert garbage(y)
    let_go.set()
    gpu().current_stream(DEVICE).synchronize()
    assert y.tolist() == [5.0] * 4


def test_weights_attention_and_late_copies_are_as_on_a_gpu(emulated):
    emulated(check_each, [(check_shared_weight,), (check_unasked_result,), (check_late_copies,)])


def check_stuck(_rank):
    held(gpu().current_stream(DEVICE))
    torch.ones(1, device=DEVICE).item()


def test_host_that_is_stuck_gives_up(refused):
    assert "stuck on the host" in refused(check_stuck, STRICT_NCCL_SECONDS="0.5")


# -- operations --------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.lstm, self.norm, self.dropout = nn.LSTM(4, 4, batch_first=True), nn.LayerNorm(4), nn.Dropout(0.1)
        self.embedding, self.out = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        y = self.front(x).flatten(2).transpose(1, 2)
        y = self.dropout(self.norm(self.lstm(y)[0])) + self.embedding(torch.arange(4, device=x.device))
        return self.out(y.mean(1))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "sgd-fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "adam-foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True),
}


def check_training(name, dtype):
    def trained(device):
        torch.manual_seed(1)
        model, x, y = Model().to(device), torch.randn(6, 2, 4, 4).to(device), torch.tensor([0, 1, 2] * 2).to(device)
        optimizer = OPTIMIZERS[name](model.parameters())
        for _ in range(3):
            with torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None, cache_enabled=False):
                out = model(x)
            optimizer.zero_grad()
            nn.functional.cross_entropy(out.float(), y).backward()
            optimizer.step()
        return [each.detach().cpu() for each in model.state_dict().values()]

    torch.set_num_threads(1)
    assert all(map(torch.equal, trained(DEVICE), trained("cpu")))


def test_training_has_the_bits_of_the_cpu_also_in_mixed_precision(emulated):
    trained = [(check_training, name, None) for name in OPTIMIZERS]
    emulated(check_each, [*trained, (check_training, "sgd", torch.bfloat16)])


# -- NCCL --------------------------------------------------------------------------------------------------------------


def joined(rank, folder, count=2):
    """The transport of the run, and a group of NCCL's."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    transport = agreed_transport(torch.device(DEVICE))
    assert transport.backend == "nccl", transport.reason
    return transport, transport.new_group()


def connected(rank, folder):
    transport, group = joined(rank, folder)
    transport.connect(0, 1, group)
    return group


def check_messages(rank, folder):
    group = connected(rank, folder)
    if rank == 0:
        dist.barrier()
        dist.send(torch.arange(5.0, device=DEVICE), 1, group)
        gpu().current_stream(DEVICE).synchronize()
    else:
        x = torch.zeros(5, device=DEVICE)
        work = dist.irecv(x, 0, group)
        work.wait()
        y = x + 1
        assert not work.is_completed()  # and yet the host is here
        dist.barrier()
        assert y.tolist() == [1, 2, 3, 4, 5]
        assert work.is_completed()
        with pytest.raises(ValueError, match="contiguous"):
            dist.irecv(torch.zeros(4, 4, device=DEVICE).t(), 0, group)
    dist.destroy_process_group()


def check_computation_that_does_not_wait(rank, folder):
    group = connected(rank, folder)
    if rank == 0:
        dist.barrier()
        dist.send(torch.arange(5.0, device=DEVICE), 1, group)
        gpu().current_stream(DEVICE).synchronize()
    else:
        x, side = torch.zeros(5, device=DEVICE), gpu().Stream(DEVICE)
        with gpu().stream(side):
            side.wait_stream(gpu().default_stream(DEVICE))
            work = dist.irecv(x, 0, group)
            side.synchronize()
        time.sleep(0.2)
        assert garbage((x + 0).cpu())
        dist.barrier()
        work.wait()
        assert x.tolist() == [0, 1, 2, 3, 4]


def wrong_direction(rank, folder):
    group = connected(rank, folder)
    x = torch.zeros(1, device=DEVICE)
    if rank == 0:  # the direction 1 -> 0 has yet to be connected, which blocks the host
        dist.irecv(x, 1, group)
        dist.isend(x, 1, group)
    else:
        dist.irecv(x, 0, group).wait()
        dist.isend(x.item() * torch.ones(1, device=DEVICE), 0, group)


def device_wide(rank, folder):
    from support import fake_gpu

    group = connected(rank, folder)
    if rank == 1:
        dist.irecv(torch.zeros(1, device=DEVICE), 0, group)
        fake_gpu.device_wide_wait()
    time.sleep(3)


def stream_alone(rank, folder):
    group = connected(rank, folder)
    if rank == 1:
        work = dist.irecv(torch.zeros(1, device=DEVICE), 0, group)
        gpu().current_stream(DEVICE).synchronize()  # of the stream alone
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.send(torch.zeros(1, device=DEVICE), 1, group)
    gpu().current_stream(DEVICE).synchronize()


def changed_memory(rank, folder):
    group = connected(rank, folder)
    x = torch.ones(3, device=DEVICE)
    if rank == 0:
        work = dist.isend(x, 1, group)
        time.sleep(0.2)
        x.zero_()
        gpu().current_stream(DEVICE).synchronize()
        dist.barrier()
        work.wait()
    else:
        dist.barrier()
        dist.recv(x, 0, group)
    x.cpu()
    time.sleep(3)


def other_size(rank, folder, size, dtype):
    group = connected(rank, folder)
    if rank == 0:
        dist.isend(torch.zeros(4, device=DEVICE), 1, group)
    else:
        dist.irecv(torch.zeros(size, dtype=dtype, device=DEVICE), 0, group)
    time.sleep(3)


def lost_peer(rank, folder):
    """Its death goes unnoticed."""
    group = connected(rank, folder)
    if rank == 1:
        os._exit(0)
    sent = dist.isend(torch.zeros(1, device=DEVICE), 1, group)
    sent.wait()
    time.sleep(1)
    assert not sent.is_completed()
    gpu().current_stream(DEVICE).query()


def waits_for_a_lost_peer(rank, folder):
    group = connected(rank, folder)
    if rank == 1:
        os._exit(0)
    threading.Timer(2, os._exit, [7]).start()  # as a watchdog does
    dist.send(torch.zeros(1, device=DEVICE), 1, group)
    gpu().current_stream(DEVICE).synchronize()


def test_host_without_timeout_waits_for_watchdog(emulated, tmp_path):
    with pytest.raises(ProcessExitedException) as caught:
        emulated(waits_for_a_lost_peer, tmp_path, count=2, STRICT_NCCL_SECONDS="0.5", PIPETRAIN_EMULATED_PATIENCE="inf")
    assert caught.value.exit_code == 7


def check_collectives(rank, folder):
    transport, group = joined(rank, folder, count=3)
    mine = torch.full((2,), rank + 1.0, device=DEVICE)
    x = mine.clone()
    dist.all_reduce(x, group=group)
    assert x.tolist() == [6, 6]
    found = [torch.zeros(2, device=DEVICE) for _ in range(3)]
    dist.all_gather(found, mine, group=group)
    assert [each[0].item() for each in found] == [1, 2, 3]
    dist.broadcast(mine, 1, group=group)
    assert mine.tolist() == [2, 2]
    transport.connect_all(group)
    given, taken = torch.arange(3.0, device=DEVICE) + 10 * rank, torch.zeros(3, device=DEVICE)
    work = dist.all_to_all_single(taken, given, group=group, async_op=True)
    work.wait()
    assert taken.tolist() == [rank, 10 + rank, 20 + rank]
    given = torch.full((3 if rank == 0 else 1,), float(rank), device=DEVICE)
    taken = torch.zeros(3, device=DEVICE) if rank == 0 else torch.zeros(1, device=DEVICE)
    dist.all_to_all_single(
        taken, given, [1] * 3 if rank == 0 else [1, 0, 0], [1] * 3 if rank == 0 else [1, 0, 0], group
    )
    assert taken.tolist() == ([0, 1, 2] if rank == 0 else [0])
    dist.barrier(group)


def exchange_after_all_reduce(rank, folder):
    _, group = joined(rank, folder)
    x = torch.zeros(2, device=DEVICE)
    dist.all_reduce(x, group=group)
    if rank == 0:
        dist.all_to_all_single(x.clone(), x, group=group, async_op=True)
    time.sleep(3)


ALLOWED = {
    "receive has the device wait, and not the host": (check_messages, 2),
    "received memory is garbage until the device has waited": (check_computation_that_does_not_wait, 2),
    "wait for a stream passes a posted receive": (stream_alone, 2),
    "death of a peer": (lost_peer, 2),
    "collectives": (check_collectives, 3),
}
FORBIDDEN = {
    "direction that is not connected": (wrong_direction, (), "connecting 1 -> 0"),
    "wait for the whole device": (device_wide, (), "whole device, behind receive of 4 bytes 0 -> 1"),
    "changed memory": (changed_memory, (), "changed before it was sent"),
    "another size": (other_size, (5, torch.float32), "do not match"),
    "another type": (other_size, (4, torch.int32), "do not match"),
    "exchange of all that is not connected": (exchange_after_all_reduce, (), "connecting all_to_all"),
}


@pytest.mark.parametrize("rule", ALLOWED)
def test_nccl_allows(emulated, tmp_path, rule):
    function, count = ALLOWED[rule]
    emulated(function, tmp_path, count=count)


@pytest.mark.parametrize("rule", FORBIDDEN)
def test_process_that_does_what_nccl_forbids_gives_up(refused, tmp_path, rule):
    function, arguments, message = FORBIDDEN[rule]
    assert message in refused(function, tmp_path, *arguments, count=2)


def many_receives(rank, folder):
    transport, first = joined(rank, folder)
    groups = [first, *(transport.new_group() for _ in range(3))]
    assert {each.max_ctas for each in groups} == {2}
    for group in groups:
        transport.connect(0, 1, group)
    dist.barrier()
    if rank == 1:
        works = [dist.irecv(torch.zeros(1, device=DEVICE), 0, group) for group in groups]
        time.sleep(0.3)
    dist.barrier()
    if rank == 0:
        works = [dist.isend(torch.zeros(1, device=DEVICE), 1, group) for group in groups]
    for work in works:
        work.wait()
    gpu().current_stream(DEVICE).synchronize()
    from support import strict_nccl

    assert strict_nccl.thread_blocks.most <= 8
    assert rank == 0 or strict_nccl.thread_blocks.most == 8


def test_operations_may_not_take_all_multiprocessors(emulated, refused, tmp_path):
    emulated(many_receives, tmp_path, count=2, PIPETRAIN_EMULATED_SMS="8")
    (tmp_path / "store").unlink()
    found = refused(many_receives, tmp_path, count=2, PIPETRAIN_EMULATED_SMS="7")
    assert "occupy 8 thread blocks of 7" in found


def check_shared(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    assert "share a GPU" in agreed_transport(torch.device(DEVICE)).reason


def mutant():
    os.environ["CALLED"] = "yes"


def check_mutant(_rank, _folder):
    assert os.environ.pop("CALLED") == "yes"


SETTINGS = {
    "memory": (check_full_device, 1, {"PIPETRAIN_EMULATED_MEMORY": "100000"}),
    "one device": (check_shared, 2, {"PIPETRAIN_EMULATED_SHARED": "1"}),
    "mutant": (check_mutant, 1, {"PIPETRAIN_MUTANT": f"{__name__}:mutant"}),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_environment_sets_up_the_emulator(emulated, tmp_path, setting):
    function, count, variables = SETTINGS[setting]
    emulated(function, tmp_path, count=count, **variables)
