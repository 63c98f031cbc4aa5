"""Layers whose state continues from the previous minibatch, such as LSTMs of language models over running text."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from pipetrain.engine.tensors import Tensors


class StatefulLayer(nn.Module):
    """A module whose forward can begin with the state that its last forward left.

    The state is no parameter and no buffer: neither `state_dict()` nor an export holds it. A pipeline lends each
    microbatch the state of its rows (`stage.recurrent_state`); `carrying_state` does so for a plain model.

    Attributes:
        carried: what the next forward begins with, tensors (samples, ...); empty at the beginning of the data. None,
            the default, if every forward is to begin without one.
    """

    carried: Tensors | None = None

    def carry(self, *state: Tensor) -> None:
        """Leaves the state of this forward to the next one, where state is carried; no gradient goes back through it.

        The tensors are (samples, ...). Their number never changes, and they are never changed in place.
        """
        if self.carried is not None:
            self.carried = tuple(tensor.detach() for tensor in state)


def stateful_layers(module: nn.Module) -> dict[str, StatefulLayer]:
    """The stateful layers among a module's parts, by name."""
    return {name: part for name, part in module.named_modules() if isinstance(part, StatefulLayer)}


@contextmanager
def carrying_state(module: nn.Module) -> Iterator[None]:
    """Context in which each forward of a module continues from the previous one, the first from the beginning."""
    layers = stateful_layers(module).values()
    try:
        for layer in layers:
            layer.carried = ()
        yield
    finally:
        for layer in layers:
            layer.carried = None
