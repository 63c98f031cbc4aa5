"""Adds up the gradients of a minibatch's microbatches."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from pipetrain import wire


class GradientSum:
    """A stage's gradient of the minibatch under way: weight name -> sum over the microbatches so far."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def lend(self, leaves: Mapping[str, Tensor]) -> None:
        """Before autograd's backward: lets it add to the sums as it goes, while a gradient is still in the cache."""
        for name, leaf in leaves.items():
            leaf.grad = self.tensors.get(name)

    def collect(self, leaves: Mapping[str, Tensor], others: Iterable[Tensor | None] = ()) -> None:
        """After it: takes the sums back; a weight that no microbatch has touched yet has none.

        `others` are tensors that the backward was given or returned. Autograd may hand over the memory of one of them,
        or one memory for several weights, and both it and optimizers write in place.
        """
        begun = [name for name, leaf in leaves.items() if leaf.grad is not None and name not in self.tensors]
        for name, leaf in leaves.items():
            if leaf.grad is not None:
                self.tensors[name], leaf.grad = leaf.grad, None
        if begun:
            self._separate(begun, others)

    def _separate(self, names: Iterable[str], others: Iterable[Tensor | None]) -> None:
        seen = {other.untyped_storage().data_ptr() for other in others if other is not None}
        for name in names:
            gradient = self.tensors[name]
            pointer = gradient.untyped_storage().data_ptr()
            self.tensors[name] = gradient.clone() if pointer in seen else wire.dense(gradient)
            seen.add(pointer)

    def take(self) -> dict[str, Tensor]:
        """The sum, and a new start; a weight that no microbatch touched is absent."""
        taken, self.tensors = self.tensors, {}
        return taken
