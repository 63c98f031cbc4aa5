"""State of recurrent layers that lasts from one minibatch to the next, separate for each microbatch."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from pipetrain.engine.models.stateful_layer import StatefulLayer
from pipetrain.engine.tensors import Tensors

State = tuple[Tensors, ...]
"""Tensors of every carrier in order; none at the beginning of the data."""
States = dict[int, State]
"""Index of a microbatch -> state after its last forward."""


class RecurrentState:
    """Sets the state of a stage's carriers to the state of the microbatch that they compute.

    The state after a forward is never changed afterwards, so that a recomputation can begin with it again.

    Args:
        carriers: name -> carrier; names that do not depend on the partition.
    """

    def __init__(self, carriers: Mapping[str, StatefulLayer]) -> None:
        self._carriers = carriers
        self._states: States = {}
        self.evaluated: States = {}
        """State of the evaluation under way."""
        self._restored: Mapping[str, Tensors] = {}

    @property
    def names(self) -> set[str]:
        """Names of the carriers."""
        return set(self._carriers)

    def begin(self, num_microbatches: int, *, epoch: bool) -> None:
        """Begins an interval between two drains, with `epoch` the first one of an epoch.

        A restored state is split among the microbatches, whose number may have changed.
        """
        restored, self._restored = self._restored, {}
        if epoch:
            self._states = {}
        elif restored:
            by_carrier = [_split_among_microbatches(restored[name], num_microbatches) for name in self._carriers]
            self._states = dict(enumerate(zip(*by_carrier, strict=True)))

    def of(self, microbatch: int) -> State:
        """State at the start of the next forward of a microbatch."""
        return self._states.get(microbatch, ((),) * len(self._carriers))

    def lent(self, microbatch: int) -> AbstractContextManager[None]:
        """Sets the carriers' state for a microbatch, and stores it afterwards."""
        return self._lent(microbatch) if self._carriers else nullcontext()

    @contextmanager
    def _lent(self, microbatch: int) -> Iterator[None]:
        carriers = self._carriers.values()
        try:
            for carrier, tensors in zip(carriers, self.of(microbatch), strict=True):
                carrier.carried = tensors
            yield
            self._states[microbatch] = tuple(_copied(carrier.carried or ()) for carrier in carriers)
        finally:
            for carrier in carriers:
                carrier.carried = None

    @contextmanager
    def aside(self, states: States) -> Iterator[None]:
        """Reads and writes `states` instead of the stage's own."""
        own, self._states = self._states, states
        try:
            yield
        finally:
            self._states = own

    def tensors(self) -> dict[str, Tensors]:
        """Name of a carrier -> its state for all samples of a minibatch; no names at the beginning of the data."""
        if not self._states:
            return dict(self._restored)
        in_order = (self._states[microbatch] for microbatch in sorted(self._states))
        by_carrier = zip(self._carriers, zip(*in_order, strict=True), strict=True)
        return {name: tuple(map(torch.cat, zip(*parts, strict=True))) for name, parts in by_carrier}

    def restore(self, tensors: Mapping[str, Tensors]) -> None:
        """Restores the output of `tensors`."""
        self._restored = tensors


def _copied(tensors: Tensors) -> Tensors:
    """Copies in separate memory, as a last hidden state may be a view of all activations."""
    return tuple(tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors)


def _split_among_microbatches(tensors: Tensors, num_microbatches: int) -> list[Tensors]:
    parts = [tensor.tensor_split(num_microbatches) for tensor in tensors]
    return list(zip(*parts, strict=True)) if parts else [()] * num_microbatches
