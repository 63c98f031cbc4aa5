"""The gradient of a minibatch at the weights that its gradient updates, of all stages together, in one process."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pipetrain.engine.data.minibatches import Minibatches, split
from pipetrain.engine.executors.feed import Feed, Uploads
from pipetrain.engine.losses import count_of, microbatch_loss, microbatch_weight
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.stage.stage import Stage
from pipetrain.engine.stage.staleness import StalenessMeter


@dataclass
class NewestGradients:
    """Compares the gradient that the updates of a measured minibatch apply with its gradient at the newest weights.

    Each stage keeps the weights W_t that the gradient of minibatch t updates, and the gradient. When all have updated,
    the minibatch is read again, and passes all stages, forward and backward, with these weights. Its random draws are
    the run's, and buffers such as running means stay as they are.

    Attributes:
        stages: of the whole model; none has replicas, a tied weight or carried state.
        loader: of the training data, without workers.
        uploads: that copy minibatches to the device.
        interval: the minibatches that come now.
    """

    stages: Sequence[Stage]
    loader: Minibatches
    uploads: Uploads
    interval: DrainInterval
    num_microbatches: int

    @cached_property
    def _meters(self) -> list[StalenessMeter]:
        return [stage.staleness for stage in self.stages if stage.staleness and stage.staleness.with_gradients]

    def compare(self) -> None:
        """Adds the cosines of the minibatches whose gradients all stages have applied; none if stages keep none."""
        for minibatch in set.intersection(*(set(meter.applied) for meter in self._meters)) if self._meters else ():
            gradients = self._gradients(minibatch, [meter.applied[minibatch].weights for meter in self._meters])
            for meter, found in zip(self._meters, gradients, strict=True):
                meter.compare(minibatch, found)

    def _gradients(self, minibatch: int, weights: Sequence[Mapping[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
        """Gradient of every stage at these trainable weights."""
        every = [
            stage.leaves({**stage.weights.newest.tensors, **w}) for stage, w in zip(self.stages, weights, strict=True)
        ]
        with ExitStack() as contexts:
            for stage, leaves in zip(self.stages, every, strict=True):
                contexts.enter_context(stage.module.scratch_buffers())
                contexts.enter_context(stage.module.using_weights(leaves))
            self._backward(minibatch)
        return ({name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None} for leaves in every)

    def _backward(self, minibatch: int) -> None:
        """Passes all microbatches through all stages, forward and backward."""
        place, last = self.interval.first + minibatch - self.interval.start, self.stages[-1]
        assert last.loss is not None
        only = replace(self.interval, first=place, last=place + 1)
        feed = Feed(self.loader, only, self.uploads, inputs=True, targets=True)
        inputs, targets = (split(whole, self.num_microbatches) for whole in (feed.inputs(), feed.targets().on_device))
        scale = last.scaler.scale if last.scaler is not None else 1.0  # of no effect on a cosine
        counts = [count_of(last.loss, each) for each in targets]
        for j, (outputs, target) in enumerate(zip(inputs, targets, strict=True)):
            for stage in self.stages:
                outputs = stage.module(*outputs, microbatch=(minibatch, j))
            weight = microbatch_weight(counts, j)
            loss = microbatch_loss(last.loss, outputs, target, weight)
            torch.autograd.backward(loss, torch.full_like(loss, weight * scale))
