"""A GPU for a CPU build of torch, made in Python alone: the device `fakegpu`, whose operations are carried out later.

`install()` makes it in this process, once. Its memory is the host's and its kernels are the CPU's, so that results have
the CPU's bits. What it has of a GPU are the rules that programs break without noticing on a CPU:

- Operations are queued in streams, each carried out in order by a thread of its own. Which stream is current is a state
  of the host's thread. The first operation that fails makes the whole device fail; the host hears of it when it waits.
- Memory belongs to the stream that was current when it was allocated; fresh memory is garbage. Once nobody holds it, it
  is filled with garbage in the order of its own stream, and waits for no other one but those of `record_stream`.
- The host waits only where CUDA's would: for values, for shapes that depend on values, for copies that are not
  `non_blocking` or whose host memory is not page-locked. `waits` counts each by kind and line of pipetrain's.
- Page-locked memory is read and written late by copies with `non_blocking`, and is garbage until it is written.
  Taking it waits for the whole device, unless torch's allocator has kept a block of that power of two.
- `device_wide_wait` stands for cudaFree and the like: it waits for all streams and all operations of NCCL's.

Who is stuck on the host for STRICT_NCCL_SECONDS says at which line, and ends with exit code 99. Other variables of the
environment: PIPETRAIN_EMULATED_FULL=n: every n-th allocation waits for the whole device, as torch's allocator does when
it has to release memory. PIPETRAIN_EMULATED_LOCKING=1: so does all that takes page-locked memory, as if none were kept.
PIPETRAIN_EMULATED_SHARED=1: all processes have the same GPU. PIPETRAIN_EMULATOR_LOG: the folder that `dump` writes to.
"""

from support.fake_gpu.device import install
from support.fake_gpu.host_waits import (
    EXIT_CODE,
    GARBAGE,
    NAME,
    blocked,
    dump,
    give_up,
    host_wait,
    line,
    logged_errors,
    logged_waits,
    patience,
    posted,
    setting,
    waits,
    watched,
)
from support.fake_gpu.memory import blocks, is_fake, on_host
from support.fake_gpu.streams import Lane, current_stream, device_wide_wait

__all__ = [
    "EXIT_CODE", "GARBAGE", "NAME", "Lane", "blocked", "blocks", "current_stream", "device_wide_wait", "dump",
    "give_up", "host_wait", "install", "is_fake", "line", "logged_errors", "logged_waits", "on_host", "patience",
    "posted", "setting", "waits", "watched",
]  # fmt: skip
