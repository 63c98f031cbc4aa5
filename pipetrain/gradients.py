"""Adds up the gradients of a minibatch's microbatches, without writing into what autograd returned."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pipetrain import wire


class GradientSum:
    """A stage's gradient of the minibatch under way: weight name -> sum over the microbatches so far."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._owned: set[str] = set()

    def add(self, found: Mapping[str, Tensor | None], others: Sequence[Tensor | None] = ()) -> None:
        """One microbatch: the gradients that autograd `found`, None where it did not touch the weight.

        `others` are tensors that it took or returned beside them. It may return one tensor under several names, or the
        incoming gradient itself, and optimizers write in place.
        """
        present = {name: gradient for name, gradient in found.items() if gradient is not None}
        known = [name for name in present if name in self.tensors]
        own = [name for name in known if name in self._owned]
        returned = [name for name in known if name not in self._owned]
        if own:
            torch._foreach_add_(_of(self.tensors, own), _of(present, own))
        if returned:
            sums = torch._foreach_add(_of(self.tensors, returned), _of(present, returned))
            self.tensors.update(zip(returned, sums, strict=True))
            self._owned.update(returned)
        if len(known) < len(present):
            self._begin({name: gradient for name, gradient in present.items() if name not in self.tensors}, others)

    def _begin(self, found: Mapping[str, Tensor], others: Sequence[Tensor | None]) -> None:
        shared = {other.untyped_storage().data_ptr() for other in others if other is not None}
        for name, gradient in found.items():
            pointer = gradient.untyped_storage().data_ptr()
            self.tensors[name] = gradient.clone() if pointer in shared else wire.dense(gradient)
            shared.add(pointer)

    def take(self) -> dict[str, Tensor]:
        """The sum, and a new start; a weight that no microbatch touched is absent."""
        taken, self.tensors = self.tensors, {}
        self._owned.clear()
        return taken


def _of(tensors: Mapping[str, Tensor], names: Sequence[str]) -> list[Tensor]:
    return [tensors[name] for name in names]
