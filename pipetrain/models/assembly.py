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
        state: names as in `chain.module.state_dict()`; of a tied tensor all of them have the same.
        device: where the copy is to compute.
    """
    parameters = {id(parameter) for parameter in chain.module.parameters()}
    copies: dict[int, Tensor] = {}
    made: dict[int, Tensor] = {}
    for name, tensor in chain.module.state_dict(keep_vars=True).items():
        if (value := state.get(name)) is not None:
            copies[id(tensor)] = made.setdefault(id(value), _own(value.to(device), trained=id(tensor) in parameters))
    whole = copy.deepcopy(chain, dict(copies))  # deepcopy takes what it finds in its second argument for the copy
    whole.module.to(device).eval()
    for layer in whole.layers:
        layer.to(device).eval()
    return whole


def _own(value: Tensor, *, trained: bool) -> Tensor:
    """A parameter or buffer over the memory of a tensor."""
    return nn.Parameter(value.detach(), requires_grad=False) if trained else value.detach()
