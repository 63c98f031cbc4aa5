"""The rules of the emulated GPU and of the emulated NCCL that no run of `test_emulated_gpus.py` shows to bite."""

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

from pipetrain.engine.device_queue import lock_numbers, page_locked
from pipetrain.engine.executors.feed import Uploads
from pipetrain.engine.executors.messages.links import LinkGroups, Links
from pipetrain.engine.executors.messages.transport import Transport, agreed_transport
from pipetrain.runner.tracking.host_copies import HostCopy

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
    (check_events,),
    (check_devices,),
    (check_streams_of_links,),
    (check_late_error,),  # last: the device fails for good
)


def test_streams_and_memory_are_as_a_gpu_has_them(emulated):
    emulated(check_each, STREAMS_AND_MEMORY)


# -- waits of the host -------------------------------------------------------------------------------------------------


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
    event, memory = gpu().Event(), page_locked(64)

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
        lambda: HostCopy(x, memory),
        lambda: torch.nn.functional.dropout(x @ torch.rand(3, 3, device=DEVICE)).relu_().sum(),
        lambda: event.record(),
    ):
        assert counted(late) == {}
    assert counted(lambda: HostCopy(x, memory).take()) == {"event": 1}
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


def check_uploads():
    """Data of any size go to the device while it still computes."""
    uploads = Uploads(torch.device(DEVICE))
    given = tuple(torch.arange(float(size)) for size in (3_000_000, 9_000_000, 2))
    uploads.lock()
    let_go = held(gpu().current_stream(DEVICE))
    started = uploads.start(given)
    let_go.set()
    for copy, tensor in zip(uploads.hand_over(started), given, strict=True):
        assert torch.equal(copy.cpu(), tensor)


def test_attention_and_late_copies_are_as_on_a_gpu(emulated):
    emulated(check_each, [(check_unasked_result,), (check_late_copies,), (check_uploads,)])


def check_stuck(_rank):
    held(gpu().current_stream(DEVICE))
    torch.ones(1, device=DEVICE).item()


def test_host_that_is_stuck_gives_up(refused):
    assert "stuck on the host" in refused(check_stuck, STRICT_NCCL_SECONDS="0.5")


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


def wrong_direction(rank, folder):
    group = connected(rank, folder)
    x = torch.zeros(1, device=DEVICE)
    if rank == 0:  # the direction 1 -> 0 has yet to be connected, which blocks the host
        dist.irecv(x, 1, group)
        dist.isend(x, 1, group)
    else:
        dist.irecv(x, 0, group).wait()
        dist.isend(x.item() * torch.ones(1, device=DEVICE), 0, group)


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
    "wait for a stream passes a posted receive": (stream_alone, 2),
    "death of a peer": (lost_peer, 2),
    "collectives": (check_collectives, 3),
}
FORBIDDEN = {
    "direction that is not connected": (wrong_direction, (), "connecting 1 -> 0"),
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


def test_full_device_is_out_of_memory(emulated, tmp_path):
    emulated(check_full_device, tmp_path, PIPETRAIN_EMULATED_MEMORY="100000")
