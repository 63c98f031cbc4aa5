"""Layers that go on where the minibatch before ended, such as the LSTM of a language model over running text."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from pipetrain.tensors import Tensors


class StatefulLayer(nn.Module):
    """A module whose forward can begin with the state that its last forward left.

    The state is no parameter and no buffer: neither `state_dict()` nor an export holds it. A pipeline lends each
    microbatch the state of its own rows (`stage.carried_state`); `carrying` does so for a plain model.

    Attributes:
        carried: what the next forward begins with, tensors (samples, ...); empty at the beginning of the data. None, as
            at first, where every forward is to begin anew.
    """

    carried: Tensors | None = None

    def carry(self, *state: Tensor) -> None:
        """Leaves the state of this forward to the next one, where state is carried; no gradient goes back through it.

        Args:
            state: tensors (samples, ...), always as many, and never changed in place.
        """
        if self.carried is not None:
            self.carried = tuple(tensor.detach() for tensor in state)


def stateful_layers(module: nn.Module) -> dict[str, StatefulLayer]:
    """The carriers among a module's parts, by name."""
    return {name: part for name, part in module.named_modules() if isinstance(part, StatefulLayer)}


@contextmanager
def carrying_state(module: nn.Module) -> Iterator[None]:
    """Within it, each forward of a module goes on where the one before ended, the first from the beginning."""
    found = stateful_layers(module).values()
    try:
        for carrier in found:
            carrier.carried = ()
        yield
    finally:
        for carrier in found:
            carrier.carried = None
