"""What a model must be able to do for texts to be generated from it, a token at a time."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from pipetrain.tensors import Tensors


@runtime_checkable
class Generator(Protocol):
    """An encoder and decoder whose state between two tokens is a tuple of tensors, samples in dimension 0 of each.

    The search repeats, reorders and drops the rows of all of them alike.
    """

    def begin(self, *source: Tensor) -> Tensors:
        """The state before the first token, given the encoder's padded inputs (n, positions, …)."""
        ...

    def step(self, tokens: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """The logits of the next token (n, vocabulary) after the latest tokens (n,), and the state then."""
        ...


class WholeModel(Protocol):
    """An assembled model in evaluation mode.

    Attributes:
        module: the model's own module, with the weights of all stages.
    """

    module: nn.Module

    def __call__(self, *tensors: Tensor) -> Any:
        """What the last layer returns for these inputs of the first."""
        ...
