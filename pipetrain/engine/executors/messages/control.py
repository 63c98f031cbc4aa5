"""Values and tensors that processes exchange in host memory, over the control group.

Values travel as JSON: nothing that arrives is ever unpickled.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipetrain.engine.errors import LostStageError
from pipetrain.engine.executors.hooks import Around
from pipetrain.engine.tensors import Tensors, bytes_of, dense

NCCL_LOST = "ncclRemoteError"
"""NCCL's error for a process that has ended or can no longer be reached; torch names it in a message only."""
_READER_LOST = "DataLoader worker"
"""First words of torch's errors of a process that reads samples and has died."""


@contextlib.contextmanager
def lost_stage_on_error(stage: int | None = None, *, direct: bool = False) -> Iterator[None]:
    """Around calls of torch.distributed, which break when another process is gone.

    Gloo raises a plain RuntimeError for a lost connection: unless `direct`, nothing else may be in it. Subclasses say
    something else, such as out of memory. torch raises one, too, wherever the main thread is, when a process that reads
    samples dies.
    NCCL notices that a process of another machine is gone, and not one of the same machine; torch's error then has the
    class of all errors of NCCL's.

    Args:
        stage: stage at the other end; None if it may be any process.
        direct: True for calls over NCCL.

    Raises:
        LostStageError: a process is gone.
    """
    try:
        yield
    except dist.DistNetworkError as error:
        raise LostStageError(stage) from error
    except RuntimeError as error:
        plain = type(error) is RuntimeError and not str(error).startswith(_READER_LOST)
        lost = NCCL_LOST in str(error) if direct else plain
        if not lost:
            raise
        raise LostStageError(stage) from error


@lost_stage_on_error()
def all_gather_json(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Values of all processes of a group by rank, in each of them; None for the default group."""
    sent = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    count = dist.get_world_size(group)
    sizes = [torch.empty(1, dtype=torch.int64) for _ in range(count)]
    dist.all_gather(sizes, torch.tensor([len(sent)]), group)
    longest = max(int(size) for size in sizes)
    received = [torch.empty(longest, dtype=torch.uint8) for _ in range(count)]
    dist.all_gather(received, torch.nn.functional.pad(sent, (0, longest - len(sent))), group)
    return [json.loads(text[: int(size)].numpy().tobytes()) for text, size in zip(received, sizes, strict=True)]


@lost_stage_on_error()
def broadcast_json(value: Any) -> Any:
    """The value of the first process, in each process of the run."""
    sent = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    size = torch.tensor([len(sent)])
    dist.broadcast(size, 0)
    if dist.get_rank() > 0:
        sent = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(sent, 0)
    return json.loads(sent.numpy().tobytes())


def collect_tensors(own: Mapping[str, Tensor], destination: int, waiting: Around) -> dict[str, Tensor] | None:
    """Tensors of all processes by name, in the process `destination`; None elsewhere. All call it together.

    If two processes have the same name, the tensor of the later one counts.

    Raises:
        LostStageError: a process is gone.
    """
    with waiting("all stages"):
        names = all_gather_json(list(own))
    rows = gather_tensors(tuple(own.values()), None, destination, waiting)
    if dist.get_rank() != destination:
        return None
    return {name: tensor for row in zip(names, rows, strict=True) for name, tensor in zip(*row, strict=True)}


def gather_tensors(
    own: Tensors,
    group: dist.ProcessGroup | None,
    destination: int = 0,
    waiting: Around = lambda _what: contextlib.nullcontext(),
) -> list[Tensors]:
    """Tensors of each process of a group, in one of them; empty elsewhere. All call it together.

    They travel in host memory, to the process with the index `destination` in the group.

    Raises:
        LostStageError: a process is gone.
    """
    own = tuple(dense(tensor.detach()) for tensor in own)
    with waiting("all stages"):
        announced = all_gather_json(
            [(tensor.shape, tensor.stride(), str(tensor.dtype).removeprefix("torch.")) for tensor in own], group
        )
    # One tensor at a time: joined in one message, the tensors of a process would take their memory twice at either end,
    # and on the host of a GPU. dist.gather would also need equal sizes, and memory for all processes at once.
    if dist.get_rank(group) != destination:
        for tensor in filter(Tensor.numel, own):
            with waiting("the last stage to take the weights"), lost_stage_on_error():
                dist.send(bytes_of(tensor).cpu(), group=group, group_dst=destination)
        return []
    rows = []
    for source, specs in enumerate(announced):
        row = own
        if source != destination:
            row = tuple(torch.empty_strided(shape, stride, dtype=getattr(torch, name)) for shape, stride, name in specs)
            for tensor in filter(Tensor.numel, row):
                with waiting("the weights of another stage"), lost_stage_on_error():
                    dist.recv(bytes_of(tensor), group=group, group_src=source)
        rows.append(row)
    return rows
