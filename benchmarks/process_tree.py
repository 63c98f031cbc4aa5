"""The processes of a run, found from outside, in `/proc`."""

import signal
from pathlib import Path


def workers(launcher: int) -> list[int]:
    """The workers of a run, stage 0 first: what its fork server has forked."""
    return [worker for server in fork_servers(launcher) for worker in children(server)]


def fork_servers(launcher: int) -> list[int]:
    """The process that a launcher forks its workers from, in a list; an empty one before it is there."""
    return [child for child in children(launcher) if "forkserver" in command(child)]


def handles(process: int, number: int) -> bool:
    """True if a command handles a signal itself; SIGINT, which Python always handles, as soon as it handles SIGTERM."""
    number = signal.SIGTERM if number == signal.SIGINT else number
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def children(process: int) -> list[int]:
    """In the order in which they were started, unless numbers started over."""
    return sorted(int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _parent(stat) == process)


def below(process: int) -> list[int]:
    """All that it has started, and those of theirs."""
    return [each for child in children(process) for each in (child, *below(child))]


def command(process: int) -> str:
    """The words with which it was called, each ended by a null character; empty where it is gone."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


def is_alive(process: int) -> bool:
    """Whether it runs: one that has ended and that nobody has waited for does not."""
    try:
        return _fields(Path(f"/proc/{process}/stat"))[0] != "Z"
    except OSError:
        return False


def _parent(stat: Path) -> int | None:
    try:
        return int(_fields(stat)[1])
    except OSError:
        return None


def _fields(stat: Path) -> list[str]:
    """From the state on; the name before it may have blanks."""
    return stat.read_text().rsplit(")", 1)[1].split()
