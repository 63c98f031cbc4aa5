"""The interface of a format of messages."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import torch
from torch import Tensor

from pipetrain.engine import seeding
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.tensors import Tensors


class Direction(StrEnum):
    """What a link carries."""

    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"


@dataclass(frozen=True)
class MessageTensor:
    """One tensor of a message, as both ends of its link know it.

    Attributes:
        key: the seed, the direction, the layer behind the cut, minibatch, microbatch, and its place in the message; no
            other tensor of a training has the same.
        epoch: of its minibatch, from 0; None in an evaluation.
        samples: ids of the samples of its rows; None if the format does not need them, in an evaluation, and if one
            message has the gradients of a whole minibatch.
        loss_scale: factor of scaled gradients, a tensor without dimensions; None if they are not scaled.
    """

    key: tuple[int, ...]
    epoch: int | None = None
    samples: Sequence[int] | None = None
    loss_scale: Tensor | None = None

    @property
    def place(self) -> int:
        """Its index in the message."""
        return self.key[-1]

    @property
    def minibatch(self) -> int:
        """Its minibatch since the start of the run."""
        return self.key[-3]

    def generator(self, device: torch.device) -> torch.Generator:
        """A generator of random numbers for this tensor alone."""
        return torch.Generator(device).manual_seed(seeding.key(*self.key))


class MessageFormat(ABC):
    """Turns a tensor into others that take fewer bytes, and back.

    Each end of each link has a copy of its own. The sizes of what is sent depend on the tensor's shape and dtype and on
    `form` alone, since a receiver prepares for them. Values may be read on the device only: the host never waits.

    Attributes:
        name: on the command line.
        parts: number of tensors that `encode` returns.
        keeps_state: True if what arrives depends on earlier messages.
        needs_samples: True if `MessageTensor.samples` has to be known.
        mirrors: True if the sender decodes what it sends, too, which keeps the state of both ends the same.
        not_for_gradients: why gradients cannot have it, and what works; empty if they can.
    """

    name = "custom"
    parts: int
    keeps_state = False
    needs_samples = False
    mirrors = False
    not_for_gradients = ""

    @abstractmethod
    def encode(self, tensor: Tensor, of: MessageTensor) -> Tensors:
        """What to send for a tensor: of a floating-point type, dense in memory in any order, and not empty."""

    @abstractmethod
    def decode(self, parts: Tensors, out: Tensor, of: MessageTensor) -> None:
        """Writes what arrives into `out`, a new tensor with the shape, strides and dtype of what was encoded.

        The sender calls it, too, to measure errors: unless the format `mirrors`, it changes no state there.
        """

    def meant_for(self, direction: Direction) -> Self:
        """This format for messages of one direction.

        Raises:
            ConfigError: it is not for this direction.
        """
        if direction is Direction.GRADIENTS and self.not_for_gradients:
            raise ConfigError(f"messages.gradients={self.name}: {self.not_for_gradients}")
        return self

    def form(self, epoch: int) -> Hashable:  # noqa: ARG002
        """What the sizes depend on in an epoch, besides shapes and dtypes."""
        return None

    def state(self) -> dict[str, Tensor]:
        """Tensors to save in a checkpoint, by names without a slash; called while no message is under way."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027  (most have none)
        """Continues from the result of `state`, which is on the device of the stage."""
