"""NCCL's rules between processes of a CPU: a process group as late, as serial and as unforgiving as NCCL's may be.

`install()` in each process, with the device of `support.fake_gpu`; from then on `new_group(backend="nccl")` makes one.

- A communicator is made on the host, by its first call at all ends. Point to point, each direction of a pair connects
  on the host, in its first send and receive; `all_to_all` is point to point, and connects even after an `all_reduce`.
- An operation begins behind what the current stream has queued at the call. Those of a communicator are carried out
  one by one, in order, each only with its like at the other ends: kinds and sizes must match, tags do not count.
- Sent memory is read late; if it has changed by then, that is an error. Received memory is garbage once the operation
  begins, and is written late. An operation holds its memory until it is complete or `wait` was called.
- `Work.wait` has the current stream wait, not the host; for tensors of `cpu`, which have no stream, the host.
- An operation that has begun takes thread blocks of the device (max_ctas of its group) until its other end has come.
  More than PIPETRAIN_EMULATED_SMS (132) at once are an error, as computation would find no multiprocessor.
- The death of a peer is never noticed: its operations spin for ever, as NCCL's do within a machine.

Who breaks a rule says so and ends with exit code 99, as does who is stuck on the host (fake_gpu.patience). Operations
are late by up to STRICT_NCCL_LATE_MS (3) milliseconds, twice.
"""

from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from support import fake_gpu
from support.strict_nccl.group import NAME, USUAL_CTAS, StrictGroup
from support.strict_nccl.operations import thread_blocks
from torch.distributed import distributed_c10d

__all__ = ["install", "thread_blocks"]


class _Options:
    """Stands for ProcessGroupNCCL.Options."""

    def __init__(self, **_given: Any) -> None:
        self.config = SimpleNamespace(max_ctas=USUAL_CTAS, min_ctas=1, cga_cluster_size=4)


def install() -> None:
    """Puts such groups in the place of NCCL's in this process; once."""
    if hasattr(dist.Backend, NAME.upper()):
        return
    fake_gpu.install()
    dist.Backend.register_backend(NAME, StrictGroup, extended_api=True, devices=["cpu", fake_gpu.NAME])
    made = dist.new_group

    def new_group(*args: Any, backend: str | None = None, **options: Any) -> Any:
        return made(*args, backend=NAME if backend == "nccl" else backend, **options)

    dist.new_group = new_group
    for module in (dist, distributed_c10d):
        module.is_nccl_available = lambda: True  # type: ignore[assignment]
    dist.ProcessGroupNCCL = SimpleNamespace(Options=_Options)  # type: ignore[misc, assignment]
