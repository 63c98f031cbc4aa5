"""Gradients that are told of while a backward still runs, each once it is whole."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

from torch import Tensor

OnGradient = Callable[[str, Tensor], None]
"""Called with the name of a weight and the sum of its gradients, while a backward still runs."""


class FinalGradients:
    """Tells of the gradient of each weight as soon as the last backward of a minibatch has found it.

    A layer whose backward runs others inside, such as one that checkpoints itself with use_reentrant=True, may add to a
    weight several times. The first minibatch, of which nothing is told, shows whether the stage has one; then nothing
    is told of any.

    Args:
        full_names: name of a weight -> its name in the whole model.
    """

    def __init__(self, full_names: Mapping[str, str]) -> None:
        self._full_names = full_names
        self._whole_at_once: bool | None = None

    @contextmanager
    def told_to(self, told: OnGradient, leaves: Mapping[str, Tensor]) -> Iterator[None]:
        """A context for the last backward of a minibatch, which adds to the gradients of these leaves, by name.

        Raises:
            RuntimeError: the backward adds to a weight that was already told of.
        """
        additions: Counter[str] = Counter()

        def added(name: str, leaf: Tensor) -> None:
            additions[name] += 1
            if self._whole_at_once:
                self._check_once(name, additions[name])
                assert leaf.grad is not None
                told(name, leaf.grad)

        with ExitStack() as hooks:
            for name, leaf in leaves.items():
                if leaf.requires_grad:
                    hooks.callback(leaf.register_post_accumulate_grad_hook(partial(added, name)).remove)
            yield
        if self._whole_at_once is None:
            self._whole_at_once = max(additions.values(), default=1) == 1

    def _check_once(self, name: str, additions: int) -> None:
        if additions > 1:
            raise RuntimeError(
                f"{self._full_names[name]}: a backward adds to its gradient {additions} times, and the first one of "
                "the run once, so replicas have begun to average it; checkpoint the layer with use_reentrant=False"
            )
