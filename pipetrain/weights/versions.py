"""The weight versions of a stage: the newest, those kept for a later reader, and what is made of them when read."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from pipetrain.drift import Drift
from pipetrain.optimizer import StageOptimizer
from pipetrain.schedules import Read
from pipetrain.storage_meter import StorageMeter


@dataclass(eq=False)
class WeightVersion:
    """The weights of a stage after `number` updates: name -> tensor.

    An update in place turns the newest version into the next one: `number` then changes, so whoever read these tensors
    before can tell that they hold other weights now.
    """

    number: int
    tensors: dict[str, Tensor]


class Weights:
    """All versions of one stage's weights, and what changes them. The parameters always hold the newest.

    Args:
        parameters: name -> parameter of the stage's module, at version 0.
        optimizer: of those that require a gradient.

    Attributes:
        copy_seconds: time spent so far on copying versions that are kept; on CUDA, on asking for it.
        drift: the running average of what updates change, where the method asks for one.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], optimizer: StageOptimizer) -> None:
        self._parameters = dict(parameters)
        self.optimizer = optimizer
        self.newest = WeightVersion(0, self._tensors())
        self._kept: dict[int, WeightVersion] = {}
        self.copy_seconds = 0.0
        self.drift: Drift | None = None
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

    def read(self, read: Read) -> dict[str, Tensor]:
        """name -> tensor of what an operation reads: a version's own tensors, or new ones where they are changed.

        Raises:
            RuntimeError: the version is not held.
        """
        version = self.version(read.version)
        if read.transform is None:
            return dict(version.tensors)
        assert isinstance(read.transform, WeightTransform)
        changed = read.transform.apply(version, self)
        self.meter.watch(changed)
        return {**version.tensors, **changed}

    def update(self, gradients: Mapping[str, Tensor], keep: bool) -> None:
        """Makes the next version, in place unless the present one is to be kept for a later reader."""
        before = self.drift.before(self.newest.tensors, stays=keep) if self.drift else {}
        if keep:
            self._keep_newest()
        self.optimizer.step(gradients)
        self.newest.number += 1
        if self.drift:
            self.drift.follow(before, self.newest.tensors)

    def _keep_newest(self) -> None:
        began = time.perf_counter()
        self._kept[self.newest.number] = self.newest
        for parameter in self._parameters.values():
            # whoever read this version holds its storage, so the copy becomes the newest, not the old one
            parameter.data = parameter.data.clone()
        self.newest = WeightVersion(self.newest.number, self._tensors())
        self.copy_seconds += time.perf_counter() - began
        self.meter.watch(self.newest.tensors)

    def release(self, number: int) -> None:
        """Forgets a version that nobody reads any more; its memory goes with its last reader."""
        self._kept.pop(number, None)

    def follow_drift(self, decay: float | None, fresh: bool) -> None:
        """Starts the running average of what updates change, or goes on with it; ends it where `decay` is None."""
        if decay is None:
            self.drift = None
        elif fresh or self.drift is None:
            self.drift = Drift.from_zero(decay, {name: self.newest.tensors[name] for name in self.optimizer.parameters})
        else:
            self.drift.decay = decay


@runtime_checkable
class WeightTransform(Protocol):
    """Weights made from a version when an operation reads them, such as a prediction."""

    def apply(self, version: WeightVersion, weights: Weights) -> dict[str, Tensor]:
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

    def apply(self, version: WeightVersion, weights: Weights) -> dict[str, Tensor]:
        """The predicted weights, new tensors; the weights that have no Δ yet are left out."""
        deltas = weights.optimizer.deltas()
        return _shifted(version, deltas, -self.steps * weights.optimizer.next_learning_rate)


def predicted(steps: int) -> Predicted | None:
    """The prediction so many updates ahead; None for 0, where it would be the version itself."""
    return Predicted(steps) if steps else None


@dataclass(frozen=True, slots=True)
class Corrected:
    """W - steps · δ: the weights `steps` updates ago, as far as the running average of changes tells (PipeMare T2).

    Below 0 the weights so many updates ahead.
    """

    steps: int

    def __str__(self) -> str:
        return f"{-self.steps:+d}δ"

    def apply(self, version: WeightVersion, weights: Weights) -> dict[str, Tensor]:
        """The corrected weights, new tensors.

        Raises:
            RuntimeError: the stage keeps no running average (an error of pipetrain's, never of the user's).
        """
        if weights.drift is None:
            raise RuntimeError(f"{self} needs the running average of weight changes, and none is kept")
        return _shifted(version, weights.drift.average, -self.steps)


@dataclass(frozen=True, slots=True)
class Scaled:
    """factor · W (I-TiMePReSt)."""

    factor: float

    def __str__(self) -> str:
        return f"*{self.factor:.4g}"

    def apply(self, version: WeightVersion, weights: Weights) -> dict[str, Tensor]:
        """The scaled weights, new tensors."""
        tensors = torch._foreach_mul(list(version.tensors.values()), self.factor) if version.tensors else []
        return dict(zip(version.tensors, tensors, strict=True))


def _shifted(version: WeightVersion, directions: Mapping[str, Tensor], by: float) -> dict[str, Tensor]:
    if not directions:
        return {}
    present = [version.tensors[name] for name in directions]
    shifted = torch._foreach_add(present, list(directions.values()), alpha=by)
    return dict(zip(directions, shifted, strict=True))
