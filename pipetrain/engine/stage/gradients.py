"""A stage's gradients: their sum over microbatches, hooks for final ones, clipping, and the scale of the loss."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor

from pipetrain.engine.device_queue import numbers, queues
from pipetrain.engine.errors import RunError
from pipetrain.engine.tensors import dense


class GradientSum:
    """A stage's gradient of the minibatch under way: weight name -> sum over the microbatches so far.

    Autograd adds to the sums while a gradient is in the cache. They stay with leaves that several backwards share.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._leaves: Mapping[str, Tensor] = {}

    @property
    def empty(self) -> bool:
        """True if the minibatch has no gradient yet."""
        return not self._sums

    def attach(self, leaves: Mapping[str, Tensor]) -> None:
        """Makes the sums the `grad` of these leaves, by weight name, which are the attached ones or have no `grad`."""
        if leaves is not self._leaves:
            self._detach()
            for name, total in self._sums.items():
                leaves[name].grad = total
            self._leaves = leaves

    def harvest(self, foreign_storages: set[int], *, reuse_leaves: bool) -> None:
        """Takes over each `grad` that autograd began at the attached leaves; with `reuse_leaves` they stay attached.

        Autograd may return memory of other tensors, or one memory for several weights, and both it and optimizers write
        in place: such a gradient is copied.

        Args:
            foreign_storages: `storage_pointers` of the other tensors of the backward; those of new sums are added.
            reuse_leaves: True if another backward may go to the same leaves.
        """
        for name, leaf in self._leaves.items():
            if name not in self._sums and (gradient := leaf.grad) is not None:
                pointer = gradient.untyped_storage().data_ptr()
                own = gradient.clone() if pointer in foreign_storages else dense(gradient)
                if own is not gradient:
                    leaf.grad = own
                self._sums[name] = own
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
        """The sums, with no leaf attached; without weights that no microbatch touched."""
        self._detach()
        return self._sums

    def sort(self, names: Iterable[str]) -> None:
        """Sorts the sums as these weights are, so that a norm over them does not depend on what was computed first."""
        sums = self.tensors
        self._sums = {name: sums[name] for name in names if name in sums}

    def put(self, sums: dict[str, Tensor]) -> None:
        """Takes over sums that were made elsewhere."""
        self._sums = sums

    def take(self) -> dict[str, Tensor]:
        """The sums; resets them, with no leaf attached."""
        sums, self._sums = self.tensors, {}
        return sums


OnGradient = Callable[[str, Tensor], None]
"""Called with the name of a weight and the sum of its gradients, while a backward still runs."""


class GradientReadyHooks:
    """Reports the gradient of each weight as soon as the last backward of a minibatch has completed it.

    A layer whose backward runs other backwards inside, such as one that checkpoints itself with use_reentrant=True, may
    add to a weight several times. The first minibatch, for which nothing is reported, shows if the stage has such a
    layer; if so, nothing is ever reported.

    `full_names` maps names of weights to their names in the whole model.
    """

    def __init__(self, full_names: Mapping[str, str]) -> None:
        self._full_names = full_names
        self._whole_at_once: bool | None = None

    @contextmanager
    def notifying(self, on_gradient: OnGradient, leaves: Mapping[str, Tensor]) -> Iterator[None]:
        """A context for the last backward of a minibatch, which adds to the gradients of these leaves, by name.

        Raises:
            RuntimeError: the backward adds to a gradient that was already reported.
        """
        additions: Counter[str] = Counter()

        def added(name: str, leaf: Tensor) -> None:
            additions[name] += 1
            if not self._whole_at_once:
                return
            if additions[name] > 1:
                raise RuntimeError(
                    f"{self._full_names[name]}: a backward adds to its gradient {additions[name]} times, and the first "
                    "one of the run once, so replicas have begun to average it; checkpoint the layer with "
                    "use_reentrant=False"
                )
            assert leaf.grad is not None
            on_gradient(name, leaf.grad)

        with ExitStack() as hooks:
            for name, leaf in leaves.items():
                if leaf.requires_grad:
                    hooks.callback(leaf.register_post_accumulate_grad_hook(partial(added, name)).remove)
            yield
        if self._whole_at_once is None:
            self._whole_at_once = max(additions.values(), default=1) == 1


def squared_norm(gradients: Mapping[str, Tensor]) -> Tensor:
    """Sum of squares over a stage's gradients, a scalar: float64 if one of them is that precise, else float32."""
    if not gradients:
        return torch.zeros(())
    norms, dtype = torch._foreach_norm(list(gradients.values())), _precision(gradients)
    return torch.stack([norm.to(dtype) for norm in norms]).square().sum()


def _precision(gradients: Mapping[str, Tensor]) -> torch.dtype:
    precise = any(gradient.dtype in (torch.float64, torch.complex128) for gradient in gradients.values())
    return torch.float64 if precise else torch.float32


def largest(gradients: Sequence[Tensor]) -> Tensor:
    """The largest absolute value of some gradients, a float32 scalar; not finite if any value is not, 0 without any."""
    filled = [gradient for gradient in gradients if gradient.numel()]
    if not filled:
        return torch.zeros(())
    return torch.stack([norm.float() for norm in torch._foreach_norm(filled, math.inf)]).amax()


def clipped(gradients: dict[str, Tensor], squared_norms: Sequence[Tensor], limit: float) -> dict[str, Tensor]:
    """The gradients, scaled in place so that the norm over all `squared_norms` is at most `limit`.

    As torch's clip_grad_norm_; the gradients of a `GradientSum` have separate memory. The host does not wait for a
    single norm that a device has yet to compute.
    """
    if not gradients:
        return {}
    if len(squared_norms) == 1 and queues(squared_norms[0].device):
        torch._foreach_mul_(list(gradients.values()), _factor(squared_norms[0], limit))
        return gradients
    together = torch.tensor(numbers(squared_norms), dtype=_precision(gradients)).sum()
    if (factor := _factor(together, limit).item()) != 1.0:
        torch._foreach_mul_(list(gradients.values()), factor)
    return gradients


def _factor(squared: Tensor, limit: float) -> Tensor:
    return torch.clamp(limit / (squared.sqrt() + 1e-6), max=1.0)


_FIRST = 2.0**16
_LEAST = 2.0**-64
_GROWS_AFTER = 2000


class LossScaler:
    """A power of two that gradients are multiplied by until the update, as in torch.amp.GradScaler.

    After a gradient that is not finite the update is skipped and the factor halved; after 2,000 updates in a row it is
    doubled. If all stages check the same norms, all have the same factor; else each also checks the gradients that it
    sends, which may overflow although the gradients of its weights do not.
    """

    def __init__(self) -> None:
        self.scale = _FIRST
        self.skipped = 0
        self._in_a_row = 0

    def passes(self, squared_norms: Iterable[float]) -> bool:
        """True if all norms are finite, so that the gradients may be applied; adjusts the factor.

        Raises:
            RunError: the factor has reached its lower limit and gradients still overflow.
        """
        finite = all(map(math.isfinite, squared_norms))
        if not finite:
            if self.scale <= _LEAST:
                raise RunError(
                    "train.precision=fp16: gradients are not finite however small the loss is scaled, now by "
                    f"{self.scale:g}; train.precision=bf16 has the range of fp32"
                )
            self.scale /= 2
            self.skipped += 1
        self._in_a_row = self._in_a_row + 1 if finite else 0
        if self._in_a_row == _GROWS_AFTER:
            self.scale *= 2
            self._in_a_row = 0
        return finite

    def report(self) -> dict[str, float]:
        """Factor and number of skipped updates, for `summary.json`."""
        return {"loss_scale": self.scale, "skipped_updates": self.skipped}

    def state(self) -> Tensor:
        """State for checkpoints: (scale, skipped, updates in a row), float64."""
        return torch.tensor([self.scale, self.skipped, self._in_a_row], dtype=torch.float64)

    def load_state(self, state: Tensor) -> None:
        """Restores the output of `state`."""
        self.scale = state[0].item()
        self.skipped, self._in_a_row = map(int, state[1:].tolist())
