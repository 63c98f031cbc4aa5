"""Values that the processes of a run tell each other. They travel as JSON: nothing that arrives is ever unpickled."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipetrain.errors import LostStageError


@contextlib.contextmanager
def connected(stage: int | None = None, *, direct: bool = False) -> Iterator[None]:
    """Around calls of torch.distributed, which break when another process is gone; nothing else may be in it.

    Gloo raises a plain RuntimeError for a lost connection. Its subclasses say something else, such as out of memory.
    NCCL does not notice that a process of the same machine is gone, and what it raises has names of its own.

    Args:
        stage: at the other end; None where any may be gone.
        direct: whether the calls go over NCCL.

    Raises:
        LostStageError: a process is gone.
    """
    try:
        yield
    except dist.DistNetworkError as error:
        raise LostStageError(stage) from error
    except RuntimeError as error:
        if direct or type(error) is not RuntimeError:
            raise
        raise LostStageError(stage) from error


@connected()
def from_all(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The value that each process gives, in every process; of a group or, None, of all."""
    sent, count = _encoded(value), dist.get_world_size(group)
    sizes = [torch.empty(1, dtype=torch.int64) for _ in range(count)]
    dist.all_gather(sizes, torch.tensor([len(sent)]), group)
    longest = max(int(size) for size in sizes)
    received = [torch.empty(longest, dtype=torch.uint8) for _ in range(count)]
    dist.all_gather(received, torch.nn.functional.pad(sent, (0, longest - len(sent))), group)
    return [_decoded(text[: int(size)]) for text, size in zip(received, sizes, strict=True)]


@connected()
def from_one(value: Any, source: int) -> Any:
    """The value that the process `source` gives, in every process; the others' own is ignored."""
    sent = _encoded(value)
    size = torch.tensor([len(sent)])
    dist.broadcast(size, source)
    text = sent if dist.get_rank() == source else torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(text, source)
    return _decoded(text)


def _encoded(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _decoded(text: Tensor) -> Any:
    return json.loads(text.numpy().tobytes())
