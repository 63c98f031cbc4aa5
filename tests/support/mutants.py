"""Faults put into the runtime of a worker on purpose, each of which a test of `test_emulated_gpus.py` must notice."""

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from support import fake_gpu

from pipetrain.engine import device_queue
from pipetrain.engine.executors import feed
from pipetrain.engine.executors.feed import Uploads
from pipetrain.engine.executors.messages import transport
from pipetrain.engine.executors.messages.links import DeviceLink
from pipetrain.engine.executors.messages.neighbors import Neighbors
from pipetrain.engine.schedules import Kind
from pipetrain.engine.stage.stage import Stage
from pipetrain.runner.tracking.host_copies import HostCopy


def receives_posted_ahead() -> None:
    """A receive occupies the device before this process has queued what its message may need."""

    def expect(self: DeviceLink, specs: Any) -> Any:
        tensors = self.receive(specs, "a message")
        return lambda _what: tensors

    DeviceLink.ahead = 2
    DeviceLink.expect = expect  # type: ignore[method-assign, assignment]


def dropped_wait() -> None:
    """The computation does not wait for what it reads."""
    device_queue.SideStream.hand_over = lambda _self, _tensors: None  # type: ignore[method-assign]


def memory_not_lent() -> None:
    """The allocator is not told that the computation reads what was received."""

    def hand_over(self: Any, _tensors: Any) -> None:
        self._module.current_stream(self._device).wait_stream(self._stream)

    device_queue.SideStream.hand_over = hand_over  # type: ignore[method-assign]


def sent_memory_changes() -> None:
    """What was given to NCCL is overwritten at once."""
    send = DeviceLink.send

    def send_and_overwrite(self: DeviceLink, tensor: torch.Tensor) -> Any:
        sent = send(self, tensor)
        tensor.zero_()
        return sent

    DeviceLink.send = send_and_overwrite  # type: ignore[method-assign]


def device_wide_wait() -> None:
    """Each message of activations waits for the whole device."""
    send = Neighbors.send

    def send_and_wait(self: Neighbors, kind: Kind, *arguments: Any) -> None:
        send(self, kind, *arguments)
        if kind is Kind.FORWARD:
            torch.get_device_module(self._stage.device).synchronize()

    Neighbors.send = send_and_wait  # type: ignore[method-assign]


def host_wait_in_every_forward() -> None:
    """Each forward reads a number from the device."""
    forward = Stage.forward

    def forward_and_read(self: Stage, *arguments: Any, **options: Any) -> Any:
        outputs = forward(self, *arguments, **options)
        outputs[0].sum().item()
        return outputs

    Stage.forward = forward_and_read  # type: ignore[method-assign]


def feed_locks_memory_at_use() -> None:
    """Each minibatch gets page-locked memory of its own, when the messages of the one before may be on their way."""
    start = Uploads.start

    def lock_and_start(self: Uploads, tensors: Any) -> Any:
        return start(self, tuple(tensor.pin_memory() for tensor in tensors))

    Uploads.start = lock_and_start  # type: ignore[method-assign]


def inputs_not_handed_over() -> None:
    """The computation does not wait for the copies of inputs and targets."""
    _copy_late()
    Uploads.hand_over = lambda _self, tensors: tensors  # type: ignore[method-assign]


def blocks_filled_too_early() -> None:
    """Data for the device overwrite data that it has yet to copy."""
    _copy_late()
    feed._BLOCKS = 1
    feed.event = lambda _device: None  # type: ignore[assignment]


def _copy_late() -> None:
    copy = Uploads._copy_part

    def wait_and_copy(self: Uploads, source: torch.Tensor, target: torch.Tensor) -> None:
        fake_gpu.current_stream().put(partial(time.sleep, 0.1))
        copy(self, source, target)

    Uploads._copy_part = wait_and_copy  # type: ignore[method-assign]


def losses_lock_memory_at_use() -> None:
    """Each loss gets page-locked memory of its own, which waits for the whole device."""
    copy = HostCopy.__init__

    def copy_to_new_memory(self: HostCopy, tensor: Any, _memory: Any = None) -> None:
        copy(self, tensor)

    HostCopy.__init__ = copy_to_new_memory  # type: ignore[method-assign]


def communicators_as_nccl_has_them() -> None:
    """The receives of a stage with many neighbors take all thread blocks that NCCL would give them."""
    transport._nccl_options = lambda: None


# -- no faults: what a machine may do at any time ----------------------------------------------------------------------


def full_memory_of_stage_1() -> None:
    """Every seventh allocation of one process waits for its whole device, as torch's allocator may do."""
    if os.environ["RANK"] == "1":
        os.environ["PIPETRAIN_EMULATED_FULL"] = "7"


def kernels_loaded_in_every_forward() -> None:
    """Each forward of each stage waits for the whole device, as the first use of a kernel may do."""
    forward = Stage.forward

    def load_and_forward(self: Stage, *arguments: Any, **options: Any) -> Any:
        fake_gpu.device_wide_wait()
        return forward(self, *arguments, **options)

    Stage.forward = load_and_forward  # type: ignore[method-assign]


def layers_are_compiled_as_they_are() -> None:
    """Compilation leaves graphs as they are, and notes each: in the folder of the emulator's log, before or after the
    stages are connected."""
    import torch._dynamo

    connected: list[bool] = []
    connect = Neighbors.__init__

    def note(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        folder = Path(os.environ["PIPETRAIN_EMULATOR_LOG"])
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{os.environ['RANK']}.{'late' if connected else 'ahead'}").open("a") as file:
            file.write(f"{graph.graph}\n")
        return graph

    def connect_and_note(self: Neighbors, *arguments: Any) -> None:
        connected.append(True)
        connect(self, *arguments)

    Neighbors.__init__ = connect_and_note  # type: ignore[method-assign]
    torch.compile = partial(torch.compile, backend=note)  # type: ignore[assignment]


def receives_posted_ahead_and_full_memory() -> None:
    """The fault shows where something waits for the device."""
    receives_posted_ahead()
    full_memory_of_stage_1()
