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


def check_each(_rank, checks):
    """(function, arguments) of each: in one process, as a start takes longer than a check."""
    for check, *arguments in checks:
        check(*arguments)


def check_streams_of_links():
    """All receives of a process share a stream, as one is under way at a time."""
    from support.fake_gpu.streams import Stream

    before = len(Stream.all)
    links = Links(Transport(torch.device(DEVICE), "nccl"))
    made = [links.to(peer, 0, LinkGroups(None, None)) for peer in range(30)]
    assert len(Stream.all) == before + 1
    assert len({id(link._sent) for link in made}) == 30
    assert len(Stream.all) == before + 31


# -- waits of the host -------------------------------------------------------------------------------------------------


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


def test_links_and_uploads_share_streams_as_they_should(emulated):
    emulated(check_each, [(check_streams_of_links,), (check_uploads,)])


def check_stuck(_rank):
    held(gpu().current_stream(DEVICE))
    torch.ones(1, device=DEVICE).item()


def test_host_that_is_stuck_gives_up(refused):
    assert "stuck on the host" in refused(check_stuck, STRICT_NCCL_SECONDS="0.5")


# -- NCCL --------------------------------------------------------------------------------------------------------------


def joined(rank, folder):
    """The transport of the run, and a group of NCCL's."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
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


def other_size(rank, folder, size, dtype):
    group = connected(rank, folder)
    if rank == 0:
        dist.isend(torch.zeros(4, device=DEVICE), 1, group)
    else:
        dist.irecv(torch.zeros(size, dtype=dtype, device=DEVICE), 0, group)
    time.sleep(3)


def exchange_after_all_reduce(rank, folder):
    _, group = joined(rank, folder)
    x = torch.zeros(2, device=DEVICE)
    dist.all_reduce(x, group=group)
    if rank == 0:
        dist.all_to_all_single(x.clone(), x, group=group, async_op=True)
    time.sleep(3)


FORBIDDEN = {
    "direction that is not connected": (wrong_direction, (), "connecting 1 -> 0"),
    "another size": (other_size, (5, torch.float32), "do not match"),
    "another type": (other_size, (4, torch.int32), "do not match"),
    "exchange of all that is not connected": (exchange_after_all_reduce, (), "connecting all_to_all"),
}


@pytest.mark.parametrize("rule", FORBIDDEN)
def test_process_that_does_what_nccl_forbids_gives_up(refused, tmp_path, rule):
    function, arguments, message = FORBIDDEN[rule]
    assert message in refused(function, tmp_path, *arguments, count=2)
