"""What the processes of a run call the start that they are of.

torchrun starts all processes anew when one has failed, and leaves them the store of before, with the addresses of those
that are gone. Its count of restarts differs between machines: one whose processes another brought down counts none.
"""

import time
import uuid
from collections.abc import Collection

from torch.distributed import Store

_PAUSE_SECONDS = 0.01


def agreed_name(store: Store, rank: int, num_processes: int) -> str:
    """A name that no other start has, which rank 0 gives; waits for the other processes.

    Each of the others says who it is, and takes no answer but one to that: another start's is to somebody else.

    Args:
        store: where they meet; may hold what earlier starts have left.
        rank: of this process.
        num_processes: how many there are.
    """
    own = uuid.uuid4().hex
    if rank == 0:
        _give(store, own, range(1, num_processes))
        return own
    store.set(_call(rank), own)
    while not (answer := _read(store, _answer(rank))).startswith(own):
        time.sleep(_PAUSE_SECONDS)
    name = answer.removeprefix(own)
    store.set(_taken(name, rank), "1")
    return name


def _give(store: Store, name: str, ranks: Collection[int]) -> None:
    """Answers all calls, those of processes that are gone as well, until every process has taken the name."""
    while not store.check([_taken(name, rank) for rank in ranks]):
        for rank in ranks:
            if call := _read(store, _call(rank)):
                store.set(_answer(rank), call + name)
        time.sleep(_PAUSE_SECONDS)


def _read(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def _call(rank: int) -> str:
    return f"pipetrain/call/{rank}"


def _answer(rank: int) -> str:
    return f"pipetrain/answer/{rank}"


def _taken(name: str, rank: int) -> str:
    return f"pipetrain/taken/{name}/{rank}"
