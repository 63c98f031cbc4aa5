"""How the workers of a run agree on the minibatch with which it is broken off."""

from typing import TYPE_CHECKING

from pipetrain.executors.gate import Gate

if TYPE_CHECKING:
    from torch.distributed import Store

_ASKED = "pipetrain/break-off"


class Agreement:
    """One worker's part, played by its watching thread: the one that computes may wait for a message.

    Whoever is asked tells all. Each holds its gate and says how many minibatches it has begun; the most that any has
    begun is where all shut their gates.

    Args:
        process, num_processes: which worker this is, and of how many.
        gate: its own.
    """

    def __init__(self, process: int, num_processes: int, gate: Gate) -> None:
        self._own_key = _begun(process)
        self._keys = [_begun(p) for p in range(num_processes)]
        self._gate = gate
        self.asked = False
        self._told = False
        self._agreed = False

    def ask(self) -> None:
        """Has the run broken off."""
        self.asked = True

    def proceed(self, store: "Store") -> None:
        """Does what can be done by now; to be called every so often."""
        if self._agreed:
            return
        if not self._told and (self.asked or store.check([_ASKED])):
            self.asked = self._told = True
            store.set(self._own_key, str(self._gate.hold()))
            store.set(_ASKED, "1")
        if self._told and store.check(self._keys):
            self._agreed = True
            self._gate.shut(max(int(store.get(key)) for key in self._keys))


def _begun(process: int) -> str:
    return f"pipetrain/begun/{process}"
