"""The weight versions of a stage: the newest, those kept for a later reader, and predictions; measured on storages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from pipetrain.optimizer import StageOptimizer


@dataclass(eq=False)
class WeightVersion:
    """The weights of a stage after `number` updates: name -> tensor.

    An update in place turns the newest version into the next one: `number` then changes, so whoever read these tensors
    before can tell that they hold other weights now.
    """

    number: int
    tensors: dict[str, Tensor]


@dataclass
class StorageMeter:
    """Sees which of the storages it was shown are still alive, by weak references to the storages themselves."""

    versions_max: int = 0
    bytes_peak: int = 0
    _live: list[list[tuple[StorageWeakRef, int]]] = field(default_factory=list)

    def watch(self, tensors: Mapping[str, Tensor]) -> None:
        """Adds the storages of one version or prediction, and takes a reading."""
        storages = [tensor.untyped_storage() for tensor in tensors.values()]
        self._live.append([(StorageWeakRef(storage), storage.nbytes()) for storage in storages])
        self.read()

    def read(self) -> None:
        """Updates the maxima: sets of weights with a storage alive, and the bytes of the storages alive."""
        kept = [[(ref, size) for ref, size in storages if not ref.expired()] for storages in self._live]
        self._live = [storages for storages in kept if storages]
        self.versions_max = max(self.versions_max, len(self._live))
        self.bytes_peak = max(self.bytes_peak, sum(size for storages in self._live for _, size in storages))


class Weights:
    """All versions of one stage's weights. The module's own parameters always hold the newest.

    Args:
        parameters: name -> parameter of the stage's module, at version 0.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self.newest = WeightVersion(0, self._tensors())
        self._kept: dict[int, WeightVersion] = {}
        self.meter = StorageMeter()
        self.meter.watch(self.newest.tensors)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: parameter.data for name, parameter in self._parameters.items()}

    def version(self, number: int) -> WeightVersion:
        """The version `number`.

        Raises:
            RuntimeError: it is not held (an error of pipetrain's, never of the user's).
        """
        if number == self.newest.number:
            return self.newest
        if number not in self._kept:
            raise RuntimeError(f"version {number} is not held: the newest is {self.newest.number}, kept {self.held()}")
        return self._kept[number]

    def held(self) -> list[int]:
        """The numbers of all versions held."""
        return [*self._kept, self.newest.number]

    def update(self, optimizer: StageOptimizer, gradients: Mapping[str, Tensor], keep: bool) -> None:
        """Makes the next version, in place unless the present one is to be kept for a later reader."""
        if keep:
            self._kept[self.newest.number] = self.newest
            for parameter in self._parameters.values():
                # whoever read this version holds its storage, so the copy becomes the newest, not the old one
                parameter.data = parameter.data.clone()
            self.newest = WeightVersion(self.newest.number, self._tensors())
            self.meter.watch(self.newest.tensors)
        optimizer.step(gradients)
        self.newest.number += 1

    def release(self, number: int) -> None:
        """Forgets a version that nobody reads any more; its memory goes with its last reader."""
        self._kept.pop(number, None)


@runtime_checkable
class WeightTransform(Protocol):
    """Weights made from a version when an operation reads them, such as a prediction."""

    def apply(self, version: WeightVersion, optimizer: StageOptimizer) -> dict[str, Tensor]:
        """name -> new tensor; a weight that does not change may be left out, and is then read from the version."""
        ...


@dataclass(frozen=True, slots=True)
class Predicted:
    """W - steps · lr · Δ: the weights that `steps` more updates would make (PipeOptim eq. 4).

    lr is that of the stage's next update and Δ the optimizer's next step per unit of it.
    """

    steps: int

    def __str__(self) -> str:
        return f"+{self.steps}"

    def apply(self, version: WeightVersion, optimizer: StageOptimizer) -> dict[str, Tensor]:
        """The predicted weights, new tensors; the weights that have no Δ yet are left out."""
        deltas = optimizer.deltas()
        if not deltas:
            return {}
        present = [version.tensors[name] for name in deltas]
        shift = -self.steps * optimizer.next_learning_rate
        predicted = torch._foreach_add(present, list(deltas.values()), alpha=shift)
        return dict(zip(deltas, predicted, strict=True))
