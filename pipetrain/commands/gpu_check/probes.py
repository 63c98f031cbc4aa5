"""Functions that the GPU check calls in child processes: its only module that touches a device.

A child is `python -m pipetrain.commands.gpu_check.probes FUNCTION ARGUMENTS RESULT`, with arguments as JSON, and the
file for the result. If a child is late, its last line shows where it was.
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
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from pipetrain import outer_launcher
from pipetrain.device_queue import synchronize
from pipetrain.executors.messages.links import LinkGroups
from pipetrain.executors.messages.p2p import Incoming, Outgoing
from pipetrain.executors.messages.transport import DeviceIdentity, set_environment, transport_between
from pipetrain.training.profiling.link_speed import join_links

_QUERY = "index,name,uuid,pci.bus_id,memory.total,driver_version,compute_mode,mig.mode.current"
_VARIABLES = ("NCCL_", "TORCH_NCCL_", "CUDA_", "CUBLAS_", "PYTORCH_", "NVIDIA_VISIBLE")
_SMALL, _LARGE = 1, 2**26
_SIZES = (0, _SMALL, 2**20, _LARGE)
_PINGS, _PONGS = 20, 5


# -- the environment ---------------------------------------------------------------------------------------------------


def environment(kind: str) -> dict[str, Any]:
    """Number of devices of this machine, and lines of the report about it."""
    module = torch.get_device_module(kind)
    count = module.device_count() if module.is_available() else 0
    return {"gpus": count, "lines": [*_libraries(), *_devices(kind, count), *_variables(kind)]}


def _libraries() -> Iterator[str]:
    yield f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    if not (dist.is_available() and dist.is_nccl_available()):
        yield "this build of torch has no NCCL"
    else:
        yield f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}" if torch.version.cuda else "NCCL, emulated"
    yield from _nvidia_smi(f"--query-gpu={_QUERY}", "--format=csv,noheader")


def _devices(kind: str, count: int) -> Iterator[str]:
    """Names of the devices, transports between processes on them, peer access, topology, and shared memory."""
    for device in (torch.device(kind, index) for index in range(count)):
        found, identity = torch.get_device_module(kind).get_device_properties(device), DeviceIdentity.of(device)
        capability = f", {found.major}.{found.minor}, {found.multi_processor_count} SMs" if kind == "cuda" else ""
        named = f"{identity.name}, {identity.uuid}, bus {identity.bus}{', MIG' if identity.is_instance else ''}"
        yield f"{device}: {named}, {found.total_memory / 1e9:.1f} GB{capability}"
    for processes in sorted({2, count} - {1}) if kind == "cuda" and count else []:
        devices = [torch.device("cuda", index % count) for index in range(processes)]
        transport = transport_between(devices[0], [DeviceIdentity.of(each) for each in devices])
        yield f"{processes} processes: {transport.backend}: {transport.reason}"
    if count > 1:
        if kind == "cuda":
            yield "peer access:"
            for i in range(count):
                row = [i == j or torch.cuda.can_device_access_peer(i, j) for j in range(count)]
                yield f"  {i}: {' '.join('x' if each else '-' for each in row)}"
        yield from _nvidia_smi("topo", "-m")
    shared = Path("/dev/shm")
    yield f"/dev/shm {shutil.disk_usage(shared).total / 1e9:.1f} GB" if shared.exists() else "no /dev/shm"


def _variables(kind: str) -> Iterator[str]:
    given = {name for name in os.environ if name.startswith(_VARIABLES)}
    set_environment(kind)
    names = [name for name in os.environ if name.startswith(_VARIABLES)]
    yield from (f"{name}={os.environ[name]}" for name in sorted(given))
    yield from (f"{name}={os.environ[name]} (pipetrain's)" for name in sorted(names) if name not in given)


def _nvidia_smi(*words: str) -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return ["no nvidia-smi here"]
    try:
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=15, check=False)
    except subprocess.TimeoutExpired:
        return [f"nvidia-smi {' '.join(words)} does not answer"]
    return [line.rstrip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]


# -- links -------------------------------------------------------------------------------------------------------------


def links(rank: int, count: int, kind: str, folder: str) -> list[dict[str, Any]]:
    """Measurements of this rank with each later one; all processes of the check call it together.

    Raises:
        ValueError: a message arrived changed.
    """
    device, made = join_links(rank, count, kind, folder)
    headers = made.transport.control_group()
    found = []
    for pair in combinations(range(count), 2):
        groups = [LinkGroups(made.transport.new_group(pair), headers) for _ in pair]
        if rank in pair:
            print(f"rank {rank}: connecting the pair {pair}", flush=True)
            for (source, target), group in zip((pair, pair[::-1]), groups, strict=True):
                made.transport.connect(source, target, group.payload)
            first = rank == pair[0]
            to, back = (made.to(pair[first], pair[first], group) for group in groups[:: 1 if first else -1])
            measured = _link_speeds(Outgoing(to, "a probe"), Incoming(back, "a probe"), device, first=first)
            found += [measured | {"pair": pair, "transport": made.transport.backend}] if first else []
        dist.barrier()  # one pair at a time
    return found


def _link_speeds(outgoing: Outgoing, incoming: Incoming, device: torch.device, *, first: bool) -> dict[str, float]:
    """Seconds of the smallest message, and bytes per second of the largest one, one way and both at once.

    The arguments are this process's ends of both directions of a pair; `first` is True in one of its processes.
    """

    def at_once(sent: Tensor) -> Tensor:
        outgoing.send(len(sent), (sent,))
        return incoming.take()[0]

    def there_and_back(sent: Tensor) -> Tensor:
        if first:
            return at_once(sent)
        (found,) = incoming.take()
        outgoing.send(len(found), (found,))
        return found

    def seconds(exchange: Callable[[Tensor], Tensor], size: int) -> float:
        sent = torch.arange(251, dtype=torch.uint8).repeat(size // 251 + 1)[:size].to(device)
        synchronize(device)
        began = time.perf_counter()
        found = exchange(sent)
        if not torch.equal(found, sent):
            raise ValueError(f"{size} bytes arrived changed: {found[:8].tolist()}..., not {sent[:8].tolist()}")
        outgoing.settle(1)
        synchronize(device)
        return time.perf_counter() - began

    incoming.expect([size for size in _SIZES for _ in range(2)] + [_SMALL] * _PINGS + [_LARGE] * 2 * _PONGS)
    for size in _SIZES:
        print(f"{size} bytes there and back, then both ways at once", flush=True)
        seconds(there_and_back, size)
        seconds(at_once, size)
    latency = statistics.median(seconds(there_and_back, _SMALL) / 2 for _ in range(_PINGS))
    one_way = statistics.median(seconds(there_and_back, _LARGE) / 2 for _ in range(_PONGS))
    both = statistics.median(seconds(at_once, _LARGE) for _ in range(_PONGS))
    outgoing.settle(0)
    return {"latency_s": latency, "one_way": _LARGE / one_way, "at_once": 2 * _LARGE / both}


# -- waits and launches of a simulated run -----------------------------------------------------------------------------


def waits(folder: str, words: list[str]) -> dict[str, float]:
    """Line of pipetrain's -> waits of the host for the device in a further step, as torch notices them."""
    found = []
    for steps in (8, 16):
        lines: Counter[str] = Counter()
        found.append(lines)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda *_, lines=lines, **__: lines.update([_line()])
            torch.cuda.set_sync_debug_mode("warn")
            _run(f"{folder}/waits-{steps}", words, steps)
            torch.cuda.set_sync_debug_mode("default")
    return {line: (count - found[0][line]) / 8 for line, count in found[1].items() if count > found[0][line]}


def _line() -> str:
    """The innermost line of the package outside this module."""
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


class FaultyLayer(nn.Module):
    """Passes its input on, and has a fault in the training of a worker that a run must survive, or report.

    Args:
        fault: free (memory, in each forward), or, in the sixth forward: raise, memory (too much is allocated), kill.
        moment: file for the time of the fault.
    """

    def __init__(self, fault: str, moment: str) -> None:
        super().__init__()
        self._fault, self._moment, self._calls = fault, moment, 0

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Returns its input."""
        self._calls += self.training
        if self._fault == "free":
            if x.device.type != "cpu":
                torch.get_device_module(x.device).empty_cache()
                torch.empty(4096, device=x.device).zero_()
        elif self.training and self._calls > 5 and outer_launcher.is_present():
            Path(self._moment).write_text(str(time.time()))
            if self._fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self._fault == "memory":
                torch.empty(2**46, dtype=torch.uint8, device=x.device)
            raise ValueError("the check asked for this error")
        return x


def faulty_model(fault: str, moment: str = "", width: int = 32) -> nn.Module:
    """A model of eight layers for 8 x 8 images: stages that begin at 0 and 4 free memory, or the second one fails."""
    early = FaultyLayer(fault, moment) if fault == "free" else nn.Identity()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), early, nn.ReLU(), FaultyLayer(fault, moment), nn.Linear(width, width),
        nn.ReLU(), nn.Linear(width, 10),
    )  # fmt: skip


def main() -> None:
    """Calls the function that the command line names."""
    _, function, arguments, result = sys.argv
    found = globals()[function](*json.loads(arguments))
    Path(result).write_text(json.dumps(found))
    # process groups may take their time to close, or hang, after an emulated or broken NCCL
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
