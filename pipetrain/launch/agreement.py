"""How the workers of a run agree on the minibatch after which its pipeline is drained, to end or to pause."""

from typing import TYPE_CHECKING

from pipetrain.executors.admission_gate import AdmissionGate

if TYPE_CHECKING:
    from torch.distributed import Store

_ENDS = "pipetrain/break-off"


def order_end(store: "Store") -> None:
    """Has the workers drain the pipeline and end the run."""
    store.set(_ENDS, "1")


class Agreement:
    """One worker's part, played by its watching thread: the one that computes may wait for a message.

    Whoever wants it tells all. Each holds its gate and says how many minibatches it has begun; the most that any has
    begun is where all shut their gates. A gate that was opened again begins another round.

    Args:
        process, num_processes: which worker this is, and of how many.
        gate: its own.
    """

    def __init__(self, process: int, num_processes: int, gate: AdmissionGate) -> None:
        self._process = process
        self._num_processes = num_processes
        self._gate = gate
        self._round = 0
        self._told = False
        self._agreed = False

    def ask(self) -> None:
        """Has the run broken off."""
        self._gate.end()

    def proceed(self, store: "Store") -> None:
        """Does what can be done by now; to be called every so often."""
        if self._round != self._gate.openings:
            self._round, self._told, self._agreed = self._gate.openings, False, False
        self.share_end(store)
        if self._agreed:
            return
        asked = f"pipetrain/drain/{self._round}"
        if not self._told and (self._gate.wanted or store.check([asked])):
            self._told = True
            store.set(self._begun(self._process), str(self._gate.hold()))
            store.set(asked, "1")
        keys = [self._begun(p) for p in range(self._num_processes)]
        if self._told and store.check(keys):
            self._agreed = True
            self._gate.shut(max(int(store.get(key)) for key in keys))

    def share_end(self, store: "Store") -> None:
        """Tells of the end as soon as it is wanted, though the pipeline may be draining for a pause."""
        if self._gate.ends:
            order_end(store)
        elif store.check([_ENDS]):
            self._gate.end()

    def _begun(self, process: int) -> str:
        return f"pipetrain/begun/{self._round}/{process}"
