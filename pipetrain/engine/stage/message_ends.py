"""The interface of message formats to the engine; `pipetrain.zoo.messages` implements it."""

from collections.abc import Hashable, Mapping
from typing import Any, Protocol

from torch import Tensor

from pipetrain.engine.data.minibatches import Minibatches
from pipetrain.engine.program.drain_interval import DrainInterval
from pipetrain.engine.schedules import Kind
from pipetrain.engine.stage.module import BackwardId
from pipetrain.engine.tensors import Tensors


class MessageEnds(Protocol):
    """Turns the messages between a stage and stages of other processes into what travels, and back."""

    def begin(self, minibatches: Minibatches, interval: DrainInterval, num_microbatches: int) -> None:
        """Begins an interval; raises a ConfigError if a format needs ids of samples, and `minibatches` have none."""

    def form(self, epoch: int) -> Hashable:
        """What sizes depend on in this epoch, besides the shapes of what is encoded."""

    def encode(self, kind: Kind, message: BackwardId, tensors: Tensors) -> Tensors:
        """What to send for a message; the tensors themselves if its link has no format."""

    def decode(self, kind: Kind, message: BackwardId, tensors: Tensors) -> Tensors:
        """The tensors of a message that has arrived."""

    def of_evaluation(self, tensors: Tensors, *, sends: bool) -> Tensors:
        """What to send for activations of an evaluation, or what has arrived; no state changes."""

    def report(self) -> Mapping[str, Any]:
        """Measurements of messages, by name; may wait for the device."""

    def state(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Name of an end, for every end -> name -> tensor of its state at a drain."""

    def load_state(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restores the ends whose state was saved; the others keep none."""
