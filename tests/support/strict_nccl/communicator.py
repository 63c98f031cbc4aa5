"""The connections between some ranks of a group."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection

from support.fake_gpu import Lane, give_up
from support.strict_nccl.operations import late


class Communicator:
    """The connections between some ranks of a group, and the queue of their operations."""

    def __init__(self, wires: Mapping[int, Connection]) -> None:
        self.lane, self._wires = Lane(), wires

    def exchange(
        self, rank: int, kind: tuple[str, str], sent: Callable[[int], bytes], sizes: Sequence[tuple[int, int]]
    ) -> dict[int, bytes]:
        """What the others send.

        Args:
            rank: of this process.
            kind: of the operation, here and at the other end.
            sent: what goes to a peer, read once all have come.
            sizes: bytes to and from each rank.
        """
        found: dict[int, bytes] = {}
        try:
            for peer, wire in self._wires.items():
                expected = repr((kind[::-1], sizes[peer][::-1]))
                there = _swapped(wire, repr((kind, sizes[peer])).encode(), first=rank < peer).decode()
                if there != expected:
                    give_up(f"operations do not match: here {(kind, sizes[peer])}, at rank {peer} {there}")
            late()
            # pairs go in one order everywhere, so that none waits in a ring
            found = {peer: _swapped(wire, sent(peer), first=rank < peer) for peer, wire in self._wires.items()}
        except (EOFError, OSError):
            threading.Event().wait()  # the peer is gone, and NCCL does not notice
        late()
        return found


def _swapped(wire: Connection, sent: bytes, *, first: bool) -> bytes:
    """What the other end sends; one of them sends first."""
    if first:
        wire.send_bytes(sent)
    found = wire.recv_bytes()
    if not first:
        wire.send_bytes(sent)
    return found
