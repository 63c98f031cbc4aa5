"""Messages in bfloat16."""

import torch
from torch import Tensor
from typing_extensions import override

from pipetrain.engine.tensors import Tensors, flat
from pipetrain.zoo.messages.base import MessageFormat, MessageTensor


class Bf16(MessageFormat):
    """Rounds to the nearest bfloat16."""

    name = "bf16"
    parts = 1

    @override
    def encode(self, tensor: Tensor, of: MessageTensor) -> Tensors:
        return (flat(tensor).to(torch.bfloat16),)

    @override
    def decode(self, parts: Tensors, out: Tensor, of: MessageTensor) -> None:
        flat(out).copy_(parts[0])
