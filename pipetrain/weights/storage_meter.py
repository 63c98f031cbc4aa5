"""Counts the sets of weights in memory by weak references to their storages, independent of any bookkeeping."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass
class StorageMeter:
    """The sets of weights in memory, whoever holds them.

    Memory that is kept for another set counts for the last one that it held.

    Attributes:
        versions_max: most sets of weights in memory at a reading.
        versions_since: the same since the last `mark`.
        bytes_peak: most bytes in memory at a reading.
    """

    versions_max: int = 0
    versions_since: int = 0
    bytes_peak: int = 0
    _live: list[dict[StorageWeakRef, int]] = field(default_factory=list)

    def watch(self, tensors: Mapping[str, Tensor]) -> None:
        """Adds the storages of one version or prediction, and takes a reading."""
        storages = [tensor.untyped_storage() for tensor in tensors.values()]
        added = {StorageWeakRef(storage): storage.nbytes() for storage in storages}
        for earlier in self._live:
            for ref in added.keys() & earlier.keys():
                del earlier[ref]
        self._live.append(added)
        self.read()

    def mark(self) -> None:
        """Resets `versions_since`."""
        self.versions_since = 0
        self.read()

    def read(self) -> None:
        """Updates the maxima: sets of weights with a storage alive, and the bytes of the storages alive."""
        live = [{ref: size for ref, size in storages.items() if not ref.expired()} for storages in self._live]
        self._live = [storages for storages in live if storages]
        self.versions_max = max(self.versions_max, len(self._live))
        self.versions_since = max(self.versions_since, len(self._live))
        self.bytes_peak = max(self.bytes_peak, sum(sum(storages.values()) for storages in self._live))
