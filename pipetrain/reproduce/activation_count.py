"""What every module of a model puts out, counted as torchsummary counts it (Zhang & Abdelrahman, § 6.6, app. D)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipetrain.models.chain import LayerChain

_MIB = 2**20
_BYTES = 4
_PASSES = 2
"""torchsummary counts each output twice, for the forward and the backward."""
_PLAIN = (nn.Sequential, nn.ModuleList, nn.Identity)


@dataclass(frozen=True)
class ActivationCount:
    """Memory of a model.

    Attributes:
        weights: of all its parameters, in MiB.
        by_layer: number of weight layers before an output, itself included -> MiB of a sample's outputs, both passes.
    """

    weights: float
    by_layer: tuple[float, ...]

    @property
    def activations(self) -> float:
        """Of a sample, in MiB."""
        return sum(self.by_layer)

    def before(self, cut: int) -> float:
        """Those of a sample up to the cut after so many weight layers."""
        return sum(self.by_layer[: cut + 1])

    def increase(self, cut: int, minibatch: int, copies: int = 0) -> float:
        """Further memory of a 4-stage pipeline, in units of what there is without one.

        Two more minibatches are in flight before the cut, and each of their activations is kept once, not twice; the
        weights are kept in `copies` more versions.
        """
        more = self.before(cut) * minibatch + copies * self.weights
        return more / (self.activations * minibatch + self.weights)


def count(chain: LayerChain, shape: tuple[int, ...]) -> ActivationCount:
    """The count for samples of this shape, on the meta device: nothing is computed.

    Args:
        chain: the model, built on the meta device.
        shape: of one input, without the batch.
    """
    found: dict[int, int] = {}
    at = 0

    def enter(module: nn.Module, _inputs: Any) -> None:
        nonlocal at
        at += isinstance(module, nn.Conv2d | nn.Linear)

    def leave(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        found[at] = found.get(at, 0) + output.numel()

    for module in chain.module.modules():
        if module is not chain.module and not isinstance(module, _PLAIN):
            module.register_forward_pre_hook(enter)
            module.register_forward_hook(leave)
    chain.module.eval()
    chain.module(torch.empty(1, *shape, device="meta"))
    weights = sum(weight.numel() for weight in chain.module.parameters()) * _BYTES / _MIB
    return ActivationCount(weights, tuple(found.get(n, 0) * _BYTES * _PASSES / _MIB for n in range(at + 1)))
