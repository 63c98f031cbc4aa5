"""The number of files and connections that a worker may have open at a time."""

import contextlib
import math
import os
import resource

from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError
from pipetrain.runner.launch import master
from pipetrain.runner.training.job import Job

_EXHAUSTED = "Too many open files"
"""Text of the system's error, which libraries put in errors of any class."""
_BESIDES = 64
"""Files of the run, its data and its libraries."""
_LARGER = "a larger limit, by ulimit -n where the run starts, works"


def raise_limit() -> None:
    """Raises the soft limit of this process to the hard one."""
    with contextlib.suppress(ValueError, OSError):  # some systems set less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (_most(), _most()))


def check_open_files(job: Job) -> None:
    """Raises a ConfigError if the hard limit, which workers inherit, is too low for the connections of a process."""
    if job.settings.executor.simulated:
        return
    processes = [int(os.environ["RANK"])] if outer_launcher.is_present() else range(job.placement.num_processes)
    needed, process = max((_BESIDES + _connections(job, process), process) for process in processes)
    if resource.RLIM_INFINITY != _most() < needed:
        raise ConfigError(
            f"partition.stages={job.num_stages}: process {process} needs {needed} files and connections, and may have "
            f"{_most()} open; {_LARGER}"
        )


def explained(line: str) -> str | None:
    """The line of an error of too many open files, with the limit; None for any other error."""
    if _EXHAUSTED not in line:
        return None
    return f"{line}; this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} open; {_LARGER}"


def _connections(job: Job, process: int) -> int:
    """Number of connections that a process has at least: one for each direction of messages with a neighbor."""
    counts = job.plan.replicas or [1] * len(job.plan.stages)
    own = job.placement.stages_of[process]
    pairs = ((counts[r], counts[peer]) for r in own for peer in (r - 1, r + 1) if 0 <= peer < len(counts))
    # a replica exchanges messages with those of the neighboring stage that share its minibatches
    neighbors = sum(math.lcm(each, of_peer) // each for each, of_peer in pairs)
    every = job.placement.num_processes
    collects = every if process == job.placement.of_last_stage else 0  # the weights of all stages
    hosts_store = "MASTER_ADDR" in os.environ and process == 0 and not master.is_torchruns()
    return 2 * neighbors + collects + (2 * every if hosts_store else 0)


def _most() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]
