"""The whole model from its parts: a chain with the weights and buffers of all stages."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pipetrain.models.chain import LayerChain


def assembled(chain: LayerChain, state: Mapping[str, Tensor], device: torch.device) -> LayerChain:
    """A copy of the chain in evaluation mode that computes with other tensors; the chain itself stays as it is.

    The tensors of `state` become the copy's own where they are on the device already, so that none is held twice.

    Args:
        chain: the model, whose own weights and buffers are not read where `state` has them.
        state: names as in `chain.module.state_dict()`; of a tied tensor the first name is enough.
        device: where the copy is to compute.
    """
    named = chain.module.state_dict(keep_vars=True)
    parameters = {id(parameter) for parameter in chain.module.parameters()}
    copies: dict[int, Tensor] = {}
    for name, tensor in named.items():
        if name in state and id(tensor) not in copies:
            value = state[name].detach().to(device)
            copies[id(tensor)] = nn.Parameter(value, requires_grad=False) if id(tensor) in parameters else value
    whole = copy.deepcopy(chain, dict(copies))  # deepcopy takes what it finds in its second argument for the copy
    whole.module.to(device).eval()
    for layer in whole.layers:
        layer.to(device).eval()
    return whole
