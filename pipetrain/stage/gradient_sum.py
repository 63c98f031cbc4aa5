"""Adds up the gradients of a minibatch's microbatches."""

from collections.abc import Mapping

from torch import Tensor

from pipetrain.tensors import dense


class GradientSum:
    """A stage's gradient of the minibatch under way: weight name -> sum over the microbatches so far.

    Autograd adds to the sums as it goes, each while its gradient is still in the cache; between backwards that go to
    the same leaves the sums stay with them.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._leaves: Mapping[str, Tensor] = {}

    def lend(self, leaves: Mapping[str, Tensor]) -> None:
        """Before autograd's backward to `leaves`, by weight name: they have the sums so far as their gradients."""
        if leaves is not self._leaves:
            self._recall()
            for name, leaf in leaves.items():
                leaf.grad = self._sums.get(name)
            self._leaves = leaves

    def collect(self, taken: set[int], more: bool) -> None:
        """After it; `more` where another backward may go to the same leaves, else they are forgotten.

        `taken` is the memory (`storage_pointers`) of what else the backward was given or returned; that of the sums
        which begin here joins it. Autograd may hand over the memory of one of them, or one memory for several weights,
        and both it and optimizers write in place.
        """
        begun = {name: leaf for name, leaf in self._leaves.items() if name not in self._sums and leaf.grad is not None}
        for name, leaf in begun.items():
            assert leaf.grad is not None
            pointer = leaf.grad.untyped_storage().data_ptr()
            self._sums[name] = leaf.grad = leaf.grad.clone() if pointer in taken else dense(leaf.grad)
            taken.add(pointer)
        if not more:
            self._recall()

    def _recall(self) -> None:
        for name, leaf in self._leaves.items():
            if leaf.grad is not None:
                self._sums[name], leaf.grad = leaf.grad, None
        self._leaves = {}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The sums; a weight that no microbatch touched is absent."""
        self._recall()
        return self._sums

    def take(self) -> dict[str, Tensor]:
        """The sums, and a new start."""
        taken, self._sums = self.tensors, {}
        return taken
