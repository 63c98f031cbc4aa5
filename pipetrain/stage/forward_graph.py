"""The graph of one forward, with the weights that its backward reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pipetrain.stage.measurements import ActivationBytes
from pipetrain.stage.saved_tensors import SavedTensors
from pipetrain.tensors import Tensors, storage_pointers
from pipetrain.weights.versions import WeightVersion


@dataclass(eq=False)
class ForwardGraph:
    """The graph of a forward or recomputation, from the stage's inputs and weights to its outputs.

    Attributes:
        inputs: the differentiable ones.
        input_gradients: of these inputs, after the backward; None for an input without one.
        outputs: with their graph.
        leaves: weights of the forward, as leaves, by name.
        version: of these weights; None if the backward reads others, so that these are freed.
        number: updates of the version when it was read.
        saved: saved weights by name, if the backward reads others.
        bytes: of the tensors that the graph keeps.
    """

    inputs: Sequence[Tensor]
    input_gradients: list[Tensor | None]
    outputs: Tensors
    leaves: dict[str, Tensor]
    version: WeightVersion | None
    number: int
    saved: SavedTensors | None
    bytes: ActivationBytes

    @cached_property
    def floating_outputs(self) -> list[Tensor]:
        """The outputs that gradients come back for."""
        return [output for output in self.outputs if output.is_floating_point()]

    def unbind(self) -> None:
        """Releases the weights: the graph holds the leaves, and a prediction would live until its backward."""
        for leaf in self.leaves.values():
            leaf.data = torch.empty(0, dtype=leaf.dtype, device=leaf.device)

    def bind(self, weights: Mapping[str, Tensor]) -> None:
        """Sets the weights that the backward reads, by name."""
        assert self.saved is not None
        self.saved.backward_weights = weights
        for name, leaf in self.leaves.items():
            leaf.data = weights[name]

    @property
    def overwritten(self) -> bool:
        """True if an update has changed the weights that the backward reads."""
        return self.version is None or self.version.number != self.number

    def backward(self, gradients: Sequence[Tensor]) -> set[int]:
        """Adds to the leaves' gradients. Returns the storages of the other gradients.

        Args:
            gradients: of the floating-point outputs.
        """
        pairs = zip(self.floating_outputs, gradients, strict=True)
        differentiable = [(output, gradient) for output, gradient in pairs if output.requires_grad]
        if not differentiable:
            return set()
        outputs, output_gradients = zip(*differentiable, strict=True)
        torch.autograd.backward(outputs, output_gradients)
        return storage_pointers([*output_gradients, *self.input_gradients])

    def gradients_of_inputs(self) -> list[Tensor]:
        """Gradients for the previous stage; zeros for inputs without one."""
        pairs = zip(self.inputs, self.input_gradients, strict=True)
        return [torch.zeros_like(tensor) if gradient is None else gradient for tensor, gradient in pairs]
