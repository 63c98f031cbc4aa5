"""The weight versions of a stage: the newest, and those kept for a later reader."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from pipetrain.engine.errors import RunError
from pipetrain.engine.optim.stage_optimizer import StageOptimizer
from pipetrain.engine.program.weight_reads import WeightTransform
from pipetrain.engine.weights.average import WeightAverage
from pipetrain.engine.weights.buffer_pool import WeightBufferPool
from pipetrain.engine.weights.statistic import WeightStatistic
from pipetrain.engine.weights.storage_meter import StorageMeter


@dataclass(eq=False)
class WeightVersion:
    """The weights of a stage after `number` updates: name -> tensor.

    An update in place turns the newest version into the next one: `number` then changes, which shows an earlier reader
    that the tensors hold other weights.
    """

    number: int
    tensors: dict[str, Tensor]


class Weights:
    """All versions of one stage's weights, and their updates. The parameters always hold the newest.

    Attributes:
        copy_seconds: time spent on copying versions that are kept; on CUDA, on launching the copies.
        statistic: of the method of the present phase.
        average: of the trainable weights over all updates; None for none. It is no version: no method reads it.
        pool: memory of past versions and predictions.
        stashed: changed weights that F has read and B will, by version and transform.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], optimizer: StageOptimizer, average_decay: float | None = None
    ) -> None:
        self._parameters = dict(parameters)
        self.optimizer = optimizer
        self.newest = WeightVersion(0, {name: parameter.data for name, parameter in parameters.items()})
        self._kept: dict[int, WeightVersion] = {}
        self.stashed: dict[tuple[int, WeightTransform], dict[str, Tensor]] = {}
        self.pool = WeightBufferPool()
        self.copy_seconds = 0.0
        self.statistic: WeightStatistic | None = None
        self.average = None if average_decay is None else WeightAverage(average_decay, self.trainable)
        self.meter = StorageMeter(lambda: self.pool.free())
        self.meter.watch(self.newest.tensors)

    @property
    def trainable(self) -> dict[str, Tensor]:
        """Name -> the newest weight, of those that require a gradient."""
        return {name: self.newest.tensors[name] for name in self.optimizer.parameters}

    @property
    def evaluated(self) -> dict[str, Tensor]:
        """Name -> the weight that evaluations read: its average if there is one, else the newest."""
        return {**self.newest.tensors, **(self.average.tensors if self.average is not None else {})}

    def version(self, number: int) -> WeightVersion:
        """Version `number`.

        Raises:
            RuntimeError: it is not held (a bug of pipetrain).
        """
        if number == self.newest.number:
            return self.newest
        if number not in self._kept:
            raise RuntimeError(f"version {number} is not held: the newest is {self.newest.number}, kept {self.held()}")
        return self._kept[number]

    def held(self) -> list[int]:
        """The numbers of all versions held."""
        return [*self._kept, self.newest.number]

    def read(self, number: int, transform: WeightTransform | None = None) -> dict[str, Tensor]:
        """Tensors of version `number` by name, or new ones if `transform` changes them.

        Raises:
            RuntimeError: the version is not held.
            RunError: `transform` returns what cannot replace these weights.
        """
        if transform is None:
            return dict(self.version(number).tensors)
        if (number, transform) in self.stashed:
            return dict(self.stashed[number, transform])
        version = self.version(number)
        changed = self._changed(version, transform)
        if transform.stashed:  # updates in place change the weights that it leaves out
            kept = [name for name in self.optimizer.parameters if name not in changed]
            changed = {**changed, **self.pool.copy({name: version.tensors[name] for name in kept})}
        self.meter.watch(changed)
        tensors = {**version.tensors, **changed}
        if transform.stashed:
            self.stashed[number, transform] = tensors
        return dict(tensors)

    def peek(self, number: int, transform: WeightTransform | None) -> dict[str, Tensor]:
        """As `read`, with the changed tensors in memory that is neither reused nor counted."""
        if transform is None or (number, transform) in self.stashed:
            return self.read(number, transform)
        version, pool = self.version(number), self.pool
        self.pool = WeightBufferPool()
        try:
            return {**version.tensors, **self._changed(version, transform)}
        finally:
            self.pool = pool

    def _changed(self, version: WeightVersion, transform: WeightTransform) -> dict[str, Tensor]:
        changed = transform.apply(version, self)
        for name, tensor in changed.items():
            weight = version.tensors.get(name)
            if weight is None:
                raise RunError(f"transform {transform!r} returned {name!r}, which is no weight of this stage")
            if tensor.shape != weight.shape:
                raise RunError(
                    f"transform {transform!r} returned {name!r} with shape {list(tensor.shape)}; "
                    f"this weight has shape {list(weight.shape)}"
                )
        return changed

    def update(self, gradients: Mapping[str, Tensor], *, keep: bool) -> None:
        """Makes the next version, in place unless the present one is to be kept for a later reader."""
        statistic = self.statistic
        before = self.trainable if statistic is not None else {}
        if keep:
            self._keep_newest()
        else:
            before = self.pool.copy(before)
        self.optimizer.step(gradients)
        self.pool.donate(gradients)
        self.newest.number += 1
        if statistic is not None:
            statistic.follow(before, self.trainable)
        if self.average is not None:
            self.average.follow(self.trainable)

    def _keep_newest(self) -> None:
        began = time.perf_counter()
        self._kept[self.newest.number] = self.newest
        # readers of this version refer to its storage, so the copy becomes the newest; frozen weights never change
        copies = self.pool.copy(self.trainable)
        for name, tensor in copies.items():
            self._parameters[name].data = tensor
        self.newest = WeightVersion(self.newest.number, {**self.newest.tensors, **copies})
        self.copy_seconds += time.perf_counter() - began
        self.meter.watch(self.newest.tensors)

    def release(self, number: int, transform: WeightTransform | None = None) -> None:
        """Drops a version, or what is stashed of it; the memory is free when the last reader is gone."""
        if transform is None:
            self._kept.pop(number, None)
        else:
            self.stashed.pop((number, transform), None)
