"""Functions of a check for its child processes: its only module that touches a device.

A child is called as `python -m pipetrain.commands.gpu_check.inside FUNCTION ARGUMENTS RESULT`, with arguments as JSON,
and the file that the result goes to. If it is late, its last line shows where it was.
"""

import json
import os
import runpy
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from pipetrain.device_queue import synchronize
from pipetrain.executors.messages import loopback
from pipetrain.executors.messages.links import LinkGroups, Links
from pipetrain.executors.messages.p2p import Incoming, Outgoing
from pipetrain.executors.messages.transport import DeviceIdentity, agreed_transport, set_environment, transport_between
from pipetrain.run.builders.machine import device_at

_QUERY = "index,name,uuid,pci.bus_id,memory.total,driver_version,compute_mode,mig.mode.current"
_VARIABLES = ("NCCL_", "TORCH_NCCL_", "CUDA_", "CUBLAS_", "PYTORCH_", "NVIDIA_VISIBLE")
_SMALL, _LARGE = 1, 2**26
_SIZES = (0, _SMALL, 2**20, _LARGE)
_PINGS, _PONGS = 20, 5


# -- the environment ---------------------------------------------------------------------------------------------------


def environment(kind: str) -> dict[str, Any]:
    """The report's lines on this machine, and how many devices it has."""
    module = torch.get_device_module(kind)
    count = module.device_count() if module.is_available() else 0
    lines = [f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}", _nccl()]
    lines += _nvidia_smi(f"--query-gpu={_QUERY}", "--format=csv,noheader")
    lines += [f"{kind}:{index}: {_device(kind, index)}" for index in range(count)]
    lines += _transport(count) if kind == "cuda" and count else []
    lines += _peers(count) if kind == "cuda" and count > 1 else []
    lines += _nvidia_smi("topo", "-m") if count > 1 else []
    return {"gpus": count, "lines": [*lines, _shared_memory(), *_variables(kind)]}


def _nccl() -> str:
    if not (dist.is_available() and dist.is_nccl_available()):
        return "this build of torch has no NCCL"
    return f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}" if torch.version.cuda else "NCCL, emulated"


def _nvidia_smi(*words: str) -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return ["no nvidia-smi here"]
    try:
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=15, check=False)
    except subprocess.TimeoutExpired:
        return [f"nvidia-smi {' '.join(words)} does not answer"]
    return [line.rstrip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]


def _device(kind: str, index: int) -> str:
    device = torch.device(kind, index)
    found, identity = torch.get_device_module(kind).get_device_properties(device), DeviceIdentity.of(device)
    capability = f", {found.major}.{found.minor}, {found.multi_processor_count} SMs" if kind == "cuda" else ""
    named = f"{identity.name}, {identity.uuid}, bus {identity.bus}{', MIG' if identity.is_instance else ''}"
    return f"{named}, {found.total_memory / 1e9:.1f} GB{capability}"


def _transport(count: int) -> list[str]:
    """Transports between two processes, and between one process for each device."""
    lines = []
    for processes in sorted({2, count} - {1}):
        devices = [torch.device("cuda", index % count) for index in range(processes)]
        found = transport_between(devices[0], [DeviceIdentity.of(each) for each in devices])
        lines.append(f"{processes} processes: {found.backend}: {found.reason}")
    return lines


def _peers(count: int) -> list[str]:
    """Peer access between the devices."""
    rows = [[i == j or torch.cuda.can_device_access_peer(i, j) for j in range(count)] for i in range(count)]
    return ["peer access:", *(f"  {i}: {' '.join('x' if each else '-' for each in row)}" for i, row in enumerate(rows))]


def _shared_memory() -> str:
    path = Path("/dev/shm")
    return f"/dev/shm {shutil.disk_usage(path).total / 1e9:.1f} GB" if path.exists() else "no /dev/shm"


def _variables(kind: str) -> list[str]:
    given = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    set_environment(kind)
    ours = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES) and name not in given}
    return [f"{name}={value}" for name, value in sorted(given.items())] + [
        f"{name}={value} (pipetrain's)" for name, value in sorted(ours.items())
    ]


# -- links -------------------------------------------------------------------------------------------------------------


def links(rank: int, count: int, kind: str, folder: str) -> list[dict[str, Any]]:
    """Measurements of this rank with each later one; all processes of the check call it together.

    Raises:
        ValueError: another message came than was sent.
    """
    set_environment(kind)
    loopback.use()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    device = device_at(kind, rank)
    torch.get_device_module(kind).set_device(device)
    made = Links(agreed_transport(device))
    headers = made.transport.control_group()
    found = [_pair(pair, rank, made, headers) for pair in combinations(range(count), 2)]
    return [each for each in found if each is not None]


def _pair(pair: tuple[int, int], rank: int, made: Links, headers: dist.ProcessGroup) -> dict[str, Any] | None:
    """One pair at a time, while the other processes wait at the barrier."""
    groups = [LinkGroups(made.transport.new_group(pair), headers) for _ in pair]
    measured = None
    if rank in pair:
        print(f"rank {rank}: connecting the pair {pair}", flush=True)
        for (source, target), group in zip((pair, pair[::-1]), groups, strict=True):
            made.transport.connect(source, target, group.payload)
        peer, first = pair[rank == pair[0]], rank == pair[0]
        outgoing, incoming = (made.to(peer, peer, group) for group in (groups if first else groups[::-1]))
        ends = _Ends(Outgoing(outgoing, "a probe"), Incoming(incoming, "a probe"), made.transport.device, first=first)
        measured = ends.measured() | {"pair": pair, "transport": made.transport.backend}
    dist.barrier()
    return measured if rank == pair[0] else None


class _Ends:
    """This process's ends of the two directions of a pair."""

    def __init__(self, outgoing: Outgoing, incoming: Incoming, device: torch.device, *, first: bool) -> None:
        self._outgoing, self._incoming, self._device, self._first = outgoing, incoming, device, first
        self._say = f"rank {os.environ.get('RANK')}"

    def measured(self) -> dict[str, float]:
        """Seconds of the smallest message, and bytes per second of the largest one, one way and both at once."""
        repeats = [_SMALL] * _PINGS + [_LARGE] * 2 * _PONGS
        self._incoming.expect([size for size in _SIZES for _ in range(2)] + repeats)
        for size in _SIZES:
            print(f"{self._say}: {size} bytes there and back, then both ways at once", flush=True)
            self._there_and_back(self._pattern(size))
            self._at_once(self._pattern(size))
        latency = [self._seconds(self._there_and_back, _SMALL) / 2 for _ in range(_PINGS)]
        one_way = [self._seconds(self._there_and_back, _LARGE) / 2 for _ in range(_PONGS)]
        at_once = [self._seconds(self._at_once, _LARGE) for _ in range(_PONGS)]
        self._outgoing.settle(0)
        speeds = {"one_way": _LARGE / statistics.median(one_way), "at_once": 2 * _LARGE / statistics.median(at_once)}
        return {"latency_s": statistics.median(latency), **speeds}

    def _pattern(self, size: int) -> Tensor:
        return torch.arange(251, dtype=torch.uint8).repeat(size // 251 + 1)[:size].to(self._device)

    def _there_and_back(self, probe: Tensor) -> None:
        if self._first:
            self._outgoing.send(len(probe), (probe,))
            self._check(self._incoming.take()[0], probe)
        else:
            (found,) = self._incoming.take()
            self._outgoing.send(len(probe), (found,))
            self._check(found, probe)
        self._outgoing.settle(1)

    def _at_once(self, probe: Tensor) -> None:
        self._outgoing.send(len(probe), (probe,))
        self._check(self._incoming.take()[0], probe)
        self._outgoing.settle(1)

    def _check(self, found: Tensor, sent: Tensor) -> None:
        if not torch.equal(found, sent):
            raise ValueError(f"{len(sent)} bytes came changed: {found[:8].tolist()}... in place of {sent[:8].tolist()}")

    def _seconds(self, exchange: Any, size: int) -> float:
        probe = self._pattern(size)
        synchronize(self._device)
        began = time.perf_counter()
        exchange(probe)
        synchronize(self._device)
        return time.perf_counter() - began


# -- waits and launches of a simulated run -----------------------------------------------------------------------------


def waits(folder: str, words: list[str]) -> dict[str, float]:
    """Line of pipetrain's -> waits of the host for the device in a further step, as torch notices them."""
    found: list[Counter[str]] = []

    def count(*_warning: object, **_named: object) -> None:
        found[-1][_line()] += 1

    for steps in (8, 16):
        found.append(Counter())
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = count
            torch.cuda.set_sync_debug_mode("warn")
            _run(f"{folder}/waits-{steps}", words, steps)
            torch.cuda.set_sync_debug_mode("default")
    return {line: (count - found[0][line]) / 8 for line, count in found[1].items() if count > found[0][line]}


def _line() -> str:
    """The innermost line of the package's, this module aside."""
    package = str(Path(__file__).parents[2])
    for frame, number in traceback.walk_stack(None):
        file = frame.f_code.co_filename
        if file.startswith(package) and file != __file__:
            return f"pipetrain{file.removeprefix(package)}:{number}"
    return "outside pipetrain"


def launches(folder: str, words: list[str]) -> float:
    """Kernels that a further step launches."""
    from torch.profiler import ProfilerActivity, profile

    found = []
    for steps in (8, 16):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            _run(f"{folder}/launches-{steps}", words, steps)
        calls = profiled.key_averages()
        found.append(sum(each.count for each in calls if "LaunchKernel" in each.key))
    return float(found[1] - found[0]) / 8


def _run(folder: str, words: list[str], steps: int) -> None:
    """Runs the command in this process."""
    sys.argv[1:] = ["run", f"hydra.run.dir={folder}", *words, f"train.max_steps={steps}"]
    try:
        runpy.run_module("pipetrain", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"the run ended with exit code {end.code}") from None


# -- models that go wrong ----------------------------------------------------------------------------------------------


class Disturbance(nn.Module):
    """Passes its input on, and does in the training of a worker what a run must survive, or report.

    Args:
        how: free (memory, in each forward), or, in the sixth: raise, memory (that there is not), kill.
        moment: the file that the time of the fault is written to.
    """

    def __init__(self, how: str, moment: str) -> None:
        super().__init__()
        self._how, self._moment, self._calls = how, moment, 0

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Returns its input."""
        self._calls += self.training
        if self._how == "free" and x.device.type != "cpu":
            torch.get_device_module(x.device).empty_cache()
            torch.empty(4096, device=x.device).zero_()
        elif self._how != "free" and self.training and self._calls > 5 and "RANK" in os.environ:
            Path(self._moment).write_text(str(time.time()))
            self._fail(x)
        return x

    def _fail(self, x: Tensor) -> None:
        if self._how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._how == "memory":
            torch.empty(2**46, dtype=torch.uint8, device=x.device)
        raise ValueError("the check asked for this error")


def disturbed(how: str, moment: str = "", width: int = 32) -> nn.Module:
    """A model of eight layers for 8 x 8 images: stages that begin at 0 and 4 free memory, or the second one fails."""
    early = Disturbance(how, moment) if how == "free" else nn.Identity()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), early, nn.ReLU(), Disturbance(how, moment), nn.Linear(width, width),
        nn.ReLU(), nn.Linear(width, 10),
    )  # fmt: skip


def main() -> None:
    """Calls what the command line says."""
    _, function, arguments, result = sys.argv
    found = globals()[function](*json.loads(arguments))
    Path(result).write_text(json.dumps(found))
    # process groups may take their time to close, or hang, after an emulated or broken NCCL
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
