"""The sum of the gradients of a minibatch's microbatches."""

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

    @property
    def empty(self) -> bool:
        """Whether the minibatch has no gradient yet."""
        return not self._sums

    def attach(self, leaves: Mapping[str, Tensor]) -> None:
        """Makes the sums the `grad` of these leaves, by weight name, which are the attached ones or have no `grad`."""
        if leaves is not self._leaves:
            self._detach()
            for name, leaf in leaves.items():
                leaf.grad = self._sums.get(name)
            self._leaves = leaves

    def harvest(self, foreign_storages: set[int], *, reuse_leaves: bool) -> None:
        """Takes over each `grad` that autograd began at the attached leaves; with `reuse_leaves` they stay attached.

        Autograd may hand over memory that is another's, or one memory for several weights, and both it and optimizers
        write in place: such a gradient is copied.

        Args:
            foreign_storages: `storage_pointers` of what else the backward was given or returned; those of the sums that
                begin here are added.
            reuse_leaves: whether another backward may go to the same leaves.
        """
        for name, leaf in self._leaves.items():
            if name not in self._sums and leaf.grad is not None:
                pointer = leaf.grad.untyped_storage().data_ptr()
                self._sums[name] = leaf.grad = leaf.grad.clone() if pointer in foreign_storages else dense(leaf.grad)
                foreign_storages.add(pointer)
        if not reuse_leaves:
            self._detach()

    def _detach(self) -> None:
        """Leaves the attached leaves without a `grad`, and none attached."""
        for name, leaf in self._leaves.items():
            if leaf.grad is not None:
                self._sums[name], leaf.grad = leaf.grad, None
        self._leaves = {}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The sums, no leaf attached; a weight that no microbatch touched is absent."""
        self._detach()
        return self._sums

    def put(self, sums: dict[str, Tensor]) -> None:
        """Takes over sums that were made elsewhere."""
        self._sums = sums

    def take(self) -> dict[str, Tensor]:
        """The sums, which then begin anew, no leaf attached."""
        sums, self._sums = self.tensors, {}
        return sums
